"""The points in which arrays without a framework differ from what the suite expects."""

from __future__ import annotations

from adapters.raw.framework import State
from adapters.shared import quirks

OWN_MODEL = """
import numpy as np

def make():
    return {"a": np.ones((3, 4), "float32"), "b": np.arange(5, dtype="float32")}
"""
BROKEN_MODELS = {
    "no return": ("def make(): pass", "must return a dictionary of numpy arrays, not None"),
    "a list": ("def make(): return [1, 2]", "a dictionary of numpy arrays, not a list"),
    "a number": ("def make(): return {'a': 1}", "'a' must be a numpy array of numbers, not an int"),
    "an error": ("def make():\n    return 1 / 0", "^train.py:2: ZeroDivisionError"),
}


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
    own_model = OWN_MODEL
    broken_models = BROKEN_MODELS
