"""The DeepFreeze engine on TensorFlow's variables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Changes, Late, Source, Spec
from adapters.tensorflow.state import State
from workloads import Role

ALIGNMENT = 64  # of memory that TensorFlow takes over as it is


class DeepFreeze(DeepFreezeMethod[State]):
    """The variables in TensorFlow's own layout, from their own memory; a load hands new memory to them.

    A variable whose value somebody still holds gets new memory when it changes. So what the forward pass changes is held until it
    is copied, and the others are only looked at in passing, for the optimizer's step to work in place. Where `save` ends with the
    checkpoint, nothing has to be held.
    """

    metadata = {"framework": "tensorflow", "layout": "native: kernels are (in, out) and (height, width, in, out)"}

    def specs(self, state: State) -> list[Spec]:
        variables = state.plain_variables()
        return [replace(spec, shape=tuple(variables[spec.name].shape)) for spec in super().specs(state)]

    def changed_by(self, role: Role) -> Changes:
        return Changes.NEVER if role in (Role.BUFFER, Role.RNG) else Changes.UPDATE

    def sources(self, state: State) -> Mapping[str, Source]:
        variables = state.plain_variables()
        sources = {name: Late(_bytes_of, variable) for name, variable in variables.items()}
        if not self.synchronous:
            kept = [spec.name for spec in self.tensors if spec.changes is Changes.NEVER]
            sources |= {name: Late(_bytes, _value(variables[name])) for name in kept}
        return sources

    def load(self, state: State, path: Path) -> None:
        variables = state.plain_variables()
        specs = {spec.name: spec for spec in self.tensors}
        with closing(self.engine.arriving(self.nearest(path), self.tensors, {})) as arriving:
            for name, data in arriving:
                tf.raw_ops.AssignVariableOp(resource=variables[name].handle, value=_tensor(data, specs[name]))


def _value(variable: tf.Variable) -> tf.Tensor:
    """Return the variable's value, without a copy. The variable's own methods take three times as long, for each of hundreds."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _bytes_of(variable: tf.Variable) -> Bytes:
    return _bytes(_value(variable))


def _bytes(tensor: tf.Tensor) -> Bytes:
    """Return the bytes on the host, which are the tensor's own memory where it lies there."""
    plain = tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor  # Python's buffers have no bfloat16
    return np.frombuffer(memoryview(plain), np.uint8)


def _tensor(data: Bytes, spec: Spec) -> tf.Tensor:
    """Return the bytes as a tensor, in the same memory where that is aligned."""
    is_bfloat16 = spec.dtype == "bfloat16"
    array = data.view("uint16" if is_bfloat16 else spec.dtype).reshape(spec.shape)
    with tf.device("CPU:0"):
        tensor = tf.constant(array) if data.ctypes.data % ALIGNMENT else tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        return tf.bitcast(tensor, tf.bfloat16) if is_bfloat16 else tensor
