"""The DeepFreeze engine on Chainer's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from adapters.chainer.modules import parameters
from adapters.chainer.state import Array, State
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Late, Source


class DeepFreeze(DeepFreezeMethod[State]):
    """The arrays in Chainer's layout, which is the canonical one. On a CPU they are loaded into their own memory."""

    metadata = {"framework": "chainer"}

    def sources(self, state: State) -> Mapping[str, Source]:
        return {
            name: Late(_bytes, array) if isinstance(array, np.ndarray) else partial(_download, _bytes(array))
            for name, array in state.arrays().items()
        }

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        if self.place.device == "cpu":
            self.engine.expect(place)
        arrays = state.arrays()
        own = {name: _bytes(array) for name, array in arrays.items()}
        loaded = self.engine.load(place, self.tensors, {name: data for name, data in own.items() if isinstance(data, np.ndarray)})
        for name, data in loaded.items():
            own[name].set(data)
        for name, parameter in parameters(state.model).items():
            parameter.update_rule.t = int(arrays[f"optimizer/step/{name}"])
        state.optimizer.t = int(arrays["optimizer/step"])
        state.step = int(arrays["position/step"])


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)  # flat first: an array without dimensions cannot change its item size


def _download(data: Array, destination: Bytes, skip_bytes: int) -> None:
    data[skip_bytes : skip_bytes + len(destination)].get(out=destination)
