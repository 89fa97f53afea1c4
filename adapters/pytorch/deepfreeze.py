"""DeepFreeze on PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adapters.deepfreeze.driver_stream import AtAddress, DriverStream
from adapters.deepfreeze.managed import DeepFreezeManaged
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Device, Late, Memory, Remote, Source
from adapters.pytorch.state import State, in_memory_order


class DeepFreeze(DeepFreezeMethod[State]):
    """DeepFreeze that copies from the memory of the tensors and loads into it.

    On a GPU it copies on a stream beside the stream of the training.
    """

    metadata = {"framework": "pytorch"}

    def open(self, state: State) -> None:
        self._views: dict[str, _View] = {}
        super().open(state)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._views.clear()

    def new_device(self) -> Device | None:
        return new_stream() if self.place.device == "cuda" else None

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(self._current, (name, value)) for name, value in state.values().items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        self.engine.expect(place)
        tensors = state.tensors()
        targets = {name: self._memory(tensor) for name, tensor in tensors.items()}
        self.engine.load(place, self.tensors, targets)
        state.take_numbers(tensors)

    def _current(self, named: tuple[str, Tensor]) -> Memory:
        """Return the memory of a named tensor of the state.

        It is kept for the next save, because finding it anew takes ten times as long.
        """
        name, tensor = named
        view = self._views.get(name)
        if view is None or not view.shows(tensor):
            memory = self._memory(in_memory_order(tensor.detach()))
            view = _View(tensor, tensor.data_ptr(), memory)
            self._views[name] = view
        return view.memory

    def _memory(self, tensor: Tensor) -> Memory:
        if tensor.is_cuda:
            assert self.device is not None
            return Remote(self.device, AtAddress(tensor.data_ptr(), tensor.nbytes, tensor))
        return _host_bytes(tensor)


class DeepFreezeStore(DeepFreezeManaged[State]):
    """DeepFreeze that keeps the last checkpoints, and goes back to an older one after damage."""

    method_class = DeepFreeze


def new_stream() -> DriverStream:
    """Return a stream on the current GPU."""
    gpu = torch.cuda.current_device()
    return DriverStream(gpu, lambda: torch.cuda.current_stream(gpu).cuda_stream)


@dataclass(frozen=True, slots=True)
class _View:
    """The memory of a tensor. While this is there, nothing else gets the memory's address."""

    tensor: Tensor
    address: int
    memory: Memory

    def shows(self, tensor: Tensor) -> bool:
        """Return whether the memory is a tensor's. A script may set `data` to other memory."""
        return tensor is self.tensor and tensor.data_ptr() == self.address


def _bytes(tensor: Tensor) -> Tensor:
    # A tensor without dimensions cannot change its item size, so it gets a dimension first.
    return tensor.reshape(-1).view(torch.uint8)


def _host_bytes(tensor: Tensor) -> Bytes:
    """Return the memory of a tensor on the host.

    Views of numpy take a third of the time of PyTorch's, and a state has hundreds of tensors.
    """
    try:
        return tensor.numpy().reshape(-1).view(np.uint8)
    except TypeError:
        # numpy lacks some types, such as bfloat16.
        return _bytes(tensor).numpy()
