"""The points in which arrays without a framework differ from what the suite expects."""

from __future__ import annotations

from adapters.raw.framework import State
from adapters.shared import quirks


class Quirks(quirks.Quirks[State]):
    """Nothing is learnt, and plain files have no entries."""

    added_leaves = ("rng/numpy", "position/step")
    required_leaves = ("rng/numpy", "position/step")
    fills_master_weights = False
    learns = False
    without_gpu = "CuPy"
    formats_without_entries = frozenset({"raw bytes"})
    header_bytes = {"npz": 128}
    averaged_cases = ()
    buffers_differ_between_ranks = False
