"""The DeepFreeze engine on PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adapters.deepfreeze.arena import Arena, Pin, Unpin
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Late, Source
from adapters.pytorch.state import State


class DeepFreeze(DeepFreezeMethod[State]):
    """On a CPU the tensors' own memory is saved from and loaded into; from a GPU they come on a stream of their own, pinned."""

    metadata = {"framework": "pytorch"}

    def open(self, state: State) -> None:
        self._stream = torch.cuda.Stream() if self.place.device == "cuda" else None
        super().open(state)

    def arenas(self, pin: Pin | None = None) -> list[Arena]:
        return super().arenas(_pin if self._stream else pin)

    def sources(self, state: State) -> Mapping[str, Source]:
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())  # the copies wait for what is being computed now
        return {
            name: partial(self._download, _bytes(tensor)) if tensor.is_cuda else Late(_host_bytes, tensor)
            for name, tensor in state.tensors().items()
        }

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        if not self._stream:
            self.engine.expect(place)
        tensors = state.tensors()
        on_host = {name: _host_bytes(tensor) for name, tensor in tensors.items() if not tensor.is_cuda}
        loaded = self.engine.load(place, self.tensors, {} if self._stream else on_host)
        for name, data in loaded.items():
            _bytes(tensors[name]).copy_(torch.from_numpy(data))
        state.step = int(tensors["position/step"])

    def _download(self, data: Tensor, destination: Bytes, skip_bytes: int) -> None:
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            torch.from_numpy(destination).copy_(data[skip_bytes : skip_bytes + len(destination)], non_blocking=True)
        self._stream.synchronize()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)  # flat first: a tensor without dimensions cannot change its item size


def _host_bytes(tensor: Tensor) -> Bytes:
    """Return the tensor's own memory. By numpy's views: for each of hundreds, PyTorch's take three times as long."""
    try:
        return tensor.numpy().reshape(-1).view(np.uint8)
    except TypeError:  # a type that numpy lacks, such as bfloat16
        return _bytes(tensor).numpy()


def _pin(memory: memoryview) -> Unpin:
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(address, len(memory), 0))
    return partial(_unpin, address)


def _unpin(address: int) -> None:
    torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(address))
