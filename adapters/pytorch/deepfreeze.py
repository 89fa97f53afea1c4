"""DeepFreeze on PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adapters.deepfreeze.managed import DeepFreezeManaged
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Device, Late, Memory, Remote, Source
from adapters.pytorch.cuda_stream import CudaStream
from adapters.pytorch.state import State


class DeepFreeze(DeepFreezeMethod[State]):
    """DeepFreeze that copies from the memory of the tensors and loads into it.

    On a GPU it copies on a stream beside the stream of the training.
    """

    metadata = {"framework": "pytorch"}

    def new_device(self) -> Device | None:
        return CudaStream() if self.place.device == "cuda" else None

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(self._memory, tensor) for name, tensor in state.tensors().items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        self.engine.expect(place)
        tensors = state.tensors()
        targets = {name: self._memory(tensor) for name, tensor in tensors.items()}
        self.engine.load(place, self.tensors, targets)
        state.take_numbers(tensors)

    def _memory(self, tensor: Tensor) -> Memory:
        if tensor.is_cuda:
            assert self.device is not None
            return Remote(self.device, _bytes(tensor))
        return _host_bytes(tensor)


class DeepFreezeStore(DeepFreezeManaged[State]):
    """DeepFreeze that keeps the last checkpoints, and goes back to an older one after damage."""

    method_class = DeepFreeze


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
