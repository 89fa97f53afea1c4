"""Neutral definitions of architecture, sizes, optimizer, precision and data.

These modules import the standard library and numpy alone.
"""

from workloads.datasets import Batch
from workloads.registry import is_scalable, load, names, precisions, presets
from workloads.roles import LeafSpec, Role, role_of
from workloads.workload import Workload

__all__ = [
    "Batch",
    "LeafSpec",
    "Role",
    "Workload",
    "is_scalable",
    "load",
    "names",
    "precisions",
    "presets",
    "role_of",
]
