"""The points in which TensorFlow differs from what the conformance suite expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from adapters.shared import quirks
from adapters.tensorflow.state import State
from workloads import Role

# TensorFlow may move smaller values in a step.
_LARGE_BYTES = 1 << 14


class Quirks(quirks.Quirks[State]):
    """TensorFlow compiles every state, which takes seconds."""

    added_leaves = ("position/step", "optimizer/iterations", r"rng/.*dropout\d?")
    required_leaves = ("position/step", "optimizer/iterations")
    dtypes = frozenset({"bfloat16", "float32", "int64"})
    without_gpu = "finds no CUDA device"
    cases_from_scratch = ("candle-mlp-float32",)
    cases_behind_a_save = ("resnet50-float32",)
    cases_of_entries = ("resnet50-float32", "llm-slice-bf16-mixed")
    copies = {
        # The optimizer is written, although Keras cannot read it back.
        "legacy-h5": {Role.WEIGHT: 1, Role.BUFFER: 1, Role.OPTIMIZER: 1},
        # The weights are written twice, and the dropout seeds cannot be read back.
        "saved-model": {Role.WEIGHT: 2, Role.BUFFER: 2, Role.RNG: 1},
    }
    # A bundle holds nothing else but the length and the checksum of its one text.
    unaccounted_bytes = {".data-": 8}

    # A step of resnet50 has given some convolutions' momentum new memory.
    cases_in_place = ("candle-mlp-float32",)
    loads_in_place_during_a_save = True

    def addresses(self, state: State) -> dict[str, int]:
        addresses = {}
        for name, variable in state.plain_variables().items():
            value = variable.value()
            if value.dtype.size * value.shape.num_elements() >= _LARGE_BYTES:
                data = np.frombuffer(memoryview(tf.bitcast(value, tf.uint8)), np.uint8)
                addresses[name] = data.ctypes.data
        return addresses

    def saved_tensors(self, state: State) -> Mapping[str, Any]:
        """Return the variables in TensorFlow's own layout, which has other axes."""
        return {name: variable.numpy() for name, variable in state.plain_variables().items()}
