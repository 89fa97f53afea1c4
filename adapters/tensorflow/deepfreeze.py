"""The DeepFreeze engine on TensorFlow's variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Copy, Spec
from adapters.tensorflow.state import State

ALIGNMENT = 64  # of memory that TensorFlow takes over as it is


class DeepFreeze(DeepFreezeMethod[State]):
    """The variables in TensorFlow's own layout, from their own memory; a load hands new memory to them."""

    metadata = {"framework": "tensorflow", "layout": "native: kernels are (in, out) and (height, width, in, out)"}

    def specs(self, state: State) -> list[Spec]:
        variables = state.plain_variables()
        return [replace(spec, shape=tuple(variables[spec.name].shape)) for spec in super().specs(state)]

    def sources(self, state: State) -> Mapping[str, Bytes | Copy]:
        with tf.device("CPU:0"):  # a value on a CPU is the variable's own memory until the variable changes
            values = {name: tf.identity(variable.value()) for name, variable in state.plain_variables().items()}
            return {name: np.frombuffer(memoryview(tf.bitcast(value, tf.uint8)), np.uint8) for name, value in values.items()}

    def load(self, state: State, path: Path) -> None:
        loaded = self.engine.load(path, self.tensors, {})
        variables = state.plain_variables()
        for spec in self.tensors:
            variables[spec.name].assign(_tensor(loaded[spec.name], spec))


def _tensor(data: Bytes, spec: Spec) -> tf.Tensor:
    """Return the bytes as a tensor, in the same memory where that is aligned."""
    dtype = tf.as_dtype(spec.dtype)
    if data.ctypes.data % ALIGNMENT:
        return tf.constant(data.view(dtype.as_numpy_dtype).reshape(spec.shape))
    with tf.device("CPU:0"):
        items = tf.experimental.dlpack.from_dlpack(data.__dlpack__())
        return tf.bitcast(tf.reshape(items, (*spec.shape, dtype.size)), dtype)
