"""Copies of PyTorch's tensors on a CUDA stream beside the stream of the training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from adapters.deepfreeze.tensor import Bytes, Device, Unpin, Wait


class CudaStream(Device):
    """A stream on the current GPU.

    Small tensors are joined on the GPU, because starting a copy to the host takes as long as
    copying a megabyte.
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

    def lead(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)

    def fetch(self, tensors: Sequence[Tensor], destination: Bytes) -> None:
        # PyTorch uses the joined tensor's memory again only in the order of this stream, so that no
        # copy reads memory that has changed.
        with torch.cuda.stream(self._stream):
            joined = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
            torch.from_numpy(destination).copy_(joined, non_blocking=True)

    def put(self, source: Bytes, tensor: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            tensor.copy_(torch.from_numpy(source), non_blocking=True)

    def mark(self) -> Wait:
        event = torch.cuda.Event()
        event.record(self._stream)
        wait: Wait = event.synchronize
        return wait


def _unpin(gpu: torch.device, address: int) -> None:
    # The current GPU belongs to a thread, and this may be another thread than the one that pinned.
    with torch.cuda.device(gpu):
        torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(address))
