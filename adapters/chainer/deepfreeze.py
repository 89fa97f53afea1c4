"""DeepFreeze on Chainer's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from adapters.chainer.modules import Array
from adapters.chainer.state import State
from adapters.deepfreeze import cupy_stream
from adapters.deepfreeze.managed import DeepFreezeManaged
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Device, Late, Memory, Remote, Source


class DeepFreeze(DeepFreezeMethod[State]):
    """DeepFreeze that copies from the memory of the arrays and loads into it.

    Chainer's layout is the canonical one.
    """

    metadata = {"framework": "chainer"}

    def new_device(self) -> Device | None:
        return cupy_stream.new_stream() if self.place.device == "cuda" else None

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(self._memory, array) for name, array in state.arrays().items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        self.engine.expect(place)
        arrays = state.arrays()
        targets = {name: self._memory(array) for name, array in arrays.items()}
        self.engine.load(place, self.tensors, targets)
        state.take_numbers(arrays)

    def _memory(self, array: Array) -> Memory:
        if isinstance(array, np.ndarray):
            if not array.flags.c_contiguous:
                # A load would fill a copy, and the array would keep its old values.
                raise ValueError(
                    f"an array of shape {array.shape} is not contiguous in memory; make it so "
                    "with numpy.ascontiguousarray before DeepFreeze is opened"
                )
            # An array without dimensions cannot change its item size, so it gets one first.
            return array.reshape(-1).view(np.uint8)
        assert self.device is not None
        return Remote(self.device, cupy_stream.at_address(array))


class DeepFreezeStore(DeepFreezeManaged[State]):
    """DeepFreeze that keeps the last checkpoints, and goes back to an older one after damage."""

    method_class = DeepFreeze
