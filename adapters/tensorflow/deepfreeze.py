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
    """The variables in TensorFlow's own layout, from their own memory, and loaded into it.

    A variable whose value somebody still holds gets new memory when it changes. So every value is
    held until it is copied: what the forward pass changes is safe that way, and of the others none
    is held any more when `staged` returns, for the optimizer's step to work in place.
    """

    metadata = {
        "framework": "tensorflow",
        "layout": "native: kernels are (in, out) and (height, width, in, out)",
    }

    def open(self, state: State) -> None:
        state.recycling.take(state.plain_values)  # the first time takes longer, for both
        super().open(state)

    def specs(self, state: State) -> list[Spec]:
        variables = state.plain_variables()
        return [
            replace(spec, shape=tuple(variables[spec.name].shape)) for spec in super().specs(state)
        ]

    def changed_by(self, role: Role) -> Changes:
        return Changes.NEVER if role in (Role.BUFFER, Role.RNG) else Changes.UPDATE

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(_bytes, value) for name, value in state.plain_values().items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        self.engine.join()  # a save may still hold values, which would get copies then
        if self.place.device == "cpu":
            self.engine.expect(place)
        variables = state.plain_variables()
        specs = {spec.name: spec for spec in self.tensors}
        own = state.recycling.take(state.plain_values)
        targets = {name: value.memory for name, value in own.items()}
        with closing(self.engine.arriving(place, self.tensors, targets)) as arriving:
            for name, data in arriving:
                tf.raw_ops.AssignVariableOp(
                    resource=variables[name].handle, value=_tensor(data, specs[name])
                )


def _bytes(tensor: tf.Tensor) -> Bytes:
    """Return the bytes on the host, which are the tensor's own memory where it lies there."""
    # Python's buffers have no bfloat16
    plain = tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor
    return np.frombuffer(memoryview(plain), np.uint8)


def _tensor(data: Bytes, spec: Spec) -> tf.Tensor:
    """Return the bytes as a tensor, in the same memory where that is aligned."""
    is_bfloat16 = spec.dtype == "bfloat16"
    array = data.view("uint16" if is_bfloat16 else spec.dtype).reshape(spec.shape)
    with tf.device("CPU:0"):
        tensor = (
            tf.constant(array)
            if data.ctypes.data % ALIGNMENT
            else tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        )
        return tf.bitcast(tensor, tf.bfloat16) if is_bfloat16 else tensor
