"""DeepFreeze on the arrays of the raw adapter, which it copies from and loads into."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from adapters.deepfreeze import cupy_stream
from adapters.deepfreeze.managed import DeepFreezeManaged
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Device, Late, Memory, Remote, Source
from adapters.raw.framework import Array, State


class DeepFreeze(DeepFreezeMethod[State]):
    """DeepFreeze on arrays, which are in the canonical layout already."""

    metadata = {"framework": "raw"}

    def new_device(self) -> Device | None:
        return cupy_stream.new_stream() if self.place.device == "cuda" else None

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(self._memory, array) for name, array in state.leaves.items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        self.engine.expect(place)
        targets = {name: self._memory(array) for name, array in state.leaves.items()}
        self.engine.load(place, self.tensors, targets)

    def step(self, state: State) -> int:
        return int(state.leaves["position/step"][0])

    def _memory(self, array: Array) -> Memory:
        if self.device is not None:
            return Remote(self.device, cupy_stream.at_address(array))
        data: Memory = array.reshape(-1).view(np.uint8)
        return data


class DeepFreezeStore(DeepFreezeManaged[State]):
    """DeepFreeze that keeps the last checkpoints, and goes back to an older one after damage."""

    method_class = DeepFreeze
