"""DeepFreeze on TensorFlow's variables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from adapters.deepfreeze.managed import DeepFreezeManaged
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Changes, Late, Source, Spec
from adapters.tensorflow.state import State
from workloads import Role

ALIGNMENT = 64  # bytes; TensorFlow copies memory that is not aligned so


class DeepFreeze(DeepFreezeMethod[State]):
    """DeepFreeze that copies from the memory of the variables, and loads into it.

    The layout in the file is TensorFlow's.

    A variable gets new memory when it changes while something holds its old value. So the engine
    holds every value until it has copied it, and no forward pass can change it before. Values that
    the optimizer changes are released before `staged` returns, so that its step works in place.
    """

    metadata = {
        "framework": "tensorflow",
        "layout": "native: kernels are (in, out) and (height, width, in, out)",
    }

    def open(self, state: State) -> None:
        # The first call takes longer, so it is not left to a load.
        state.recycling.take(state.plain_values)
        super().open(state)

    def specs(self, state: State) -> list[Spec]:
        variables = state.plain_variables()
        specs = super().specs(state)
        return [replace(spec, shape=tuple(variables[spec.name].shape)) for spec in specs]

    def changed_by(self, role: Role) -> Changes:
        return Changes.NEVER if role in (Role.BUFFER, Role.RNG) else Changes.UPDATE

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(_bytes, value) for name, value in state.plain_values().items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        # A save may still hold values. Their variables would get copies.
        self.engine.join()
        if self.place.device == "cpu":
            self.engine.expect(place)
        variables = state.plain_variables()
        specs = {spec.name: spec for spec in self.tensors}
        taken = state.recycling.take(state.plain_values)
        targets = {name: own.memory for name, own in taken.items()}
        with closing(self.engine.arriving(place, self.tensors, targets)) as arriving:
            for name, data in arriving:
                value = _tensor(data, specs[name])
                tf.raw_ops.AssignVariableOp(resource=variables[name].handle, value=value)


class DeepFreezeStore(DeepFreezeManaged[State]):
    """DeepFreeze that keeps the last checkpoints, and goes back to an older one after damage."""

    method_class = DeepFreeze


def _bytes(tensor: tf.Tensor) -> Bytes:
    """Return the bytes of a tensor. A tensor in host memory is not copied."""
    # Python's buffers have no bfloat16.
    plain = tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor
    return np.frombuffer(memoryview(plain), np.uint8)


def _tensor(data: Bytes, spec: Spec) -> tf.Tensor:
    """Return bytes as a tensor, which uses the same memory if that is aligned."""
    is_bfloat16 = spec.dtype == "bfloat16"
    array = data.view("uint16" if is_bfloat16 else spec.dtype).reshape(spec.shape)
    is_aligned = data.ctypes.data % ALIGNMENT == 0
    with tf.device("CPU:0"):
        if is_aligned:
            tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        else:
            tensor = tf.constant(array)
        return tf.bitcast(tensor, tf.bfloat16) if is_bfloat16 else tensor
