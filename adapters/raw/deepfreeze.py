"""The DeepFreeze engine on the raw adapter's arrays: saved from their own memory, and on a CPU loaded into it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Late, Source
from adapters.raw.framework import Array, State


class DeepFreeze(DeepFreezeMethod[State]):
    """The arrays in their canonical layout, which is their own."""

    metadata = {"framework": "raw"}

    def sources(self, state: State) -> Mapping[str, Source]:
        return {
            name: Late(_bytes, array) if isinstance(array, np.ndarray) else partial(_download, _bytes(array))
            for name, array in state.leaves.items()
        }

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        if self.place.device == "cpu":
            self.engine.expect(place)
        own = {name: _bytes(array) for name, array in state.leaves.items()}
        loaded = self.engine.load(place, self.tensors, {name: data for name, data in own.items() if isinstance(data, np.ndarray)})
        for name, data in loaded.items():
            own[name].set(data)

    def step(self, state: State) -> int:
        return int(state.leaves["position/step"][0])


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _download(data: Array, destination: Bytes, skip_bytes: int) -> None:
    data[skip_bytes : skip_bytes + len(destination)].get(out=destination)
