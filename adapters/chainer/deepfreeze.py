"""The DeepFreeze engine on Chainer's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from adapters.chainer.modules import Array, parameters
from adapters.chainer.state import State
from adapters.deepfreeze.cupy_stream import CupyStream
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Device, Late, Memory, Remote, Source


class DeepFreeze(DeepFreezeMethod[State]):
    """The arrays in Chainer's layout, which is the canonical one: their own memory is saved from and loaded into."""

    metadata = {"framework": "chainer"}

    def new_device(self) -> Device | None:
        return CupyStream() if self.place.device == "cuda" else None

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(self._memory, array) for name, array in state.arrays().items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        self.engine.expect(place)
        arrays = state.arrays()
        self.engine.load(
            place, self.tensors, {name: self._memory(array) for name, array in arrays.items()}
        )
        for name, parameter in parameters(state.model).items():
            parameter.update_rule.t = int(arrays[f"optimizer/step/{name}"])
        state.optimizer.t = int(arrays["optimizer/step"])
        state.step = int(arrays["position/step"])

    def _memory(self, array: Array) -> Memory:
        # flat first: an array without dimensions cannot change its item size
        data = array.reshape(-1).view(np.uint8)
        if isinstance(data, np.ndarray):
            return data
        assert self.device is not None
        return Remote(self.device, data)
