"""What to train: neutral definitions of architecture, sizes, optimizer, precision and data.

Standard library and numpy only.
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
