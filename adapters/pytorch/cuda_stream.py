"""A CUDA stream beside the training's, for PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from adapters.deepfreeze.tensor import Bytes, Device, Unpin, Wait


class CudaStream(Device):
    """The current GPU's.

    Small tensors are gathered on the GPU: each copy to the host costs as much as a megabyte of one.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def pin(self, memory: memoryview) -> Unpin:
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        with torch.cuda.device(self._stream.device):
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(address, len(memory), 0))
        return partial(_unpin, self._stream.device, address)

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())

    def fetch(self, tensors: Sequence[Tensor], destination: Bytes) -> None:
        # what is gathered here is used again in the order of the stream
        with torch.cuda.stream(self._stream):
            gathered = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
            torch.from_numpy(destination).copy_(gathered, non_blocking=True)

    def put(self, source: Bytes, tensor: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            tensor.copy_(torch.from_numpy(source), non_blocking=True)

    def mark(self) -> Wait:
        event = torch.cuda.Event()
        event.record(self._stream)
        wait: Wait = event.synchronize
        return wait


def _unpin(gpu: torch.device, address: int) -> None:
    with torch.cuda.device(gpu):  # in whatever thread this is
        torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(address))
