"""A CUDA stream for CuPy's arrays, in parallel with the training's: for Chainer and raw."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from adapters.deepfreeze.tensor import Bytes, Device, Unpin, Wait, bytes_of


class CupyStream(Device):
    """A stream of the GPU that is current when this is made."""

    def __init__(self) -> None:
        # Only an environment for a GPU has it.
        import cupy

        self._cuda = cupy.cuda
        # Each thread has a current GPU of its own, so that every call names this one.
        self._gpu = cupy.cuda.Device()
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def pin(self, memory: memoryview) -> Unpin:
        address = bytes_of(memory).ctypes.data
        with self._gpu:
            self._cuda.runtime.hostRegister(address, len(memory), 0)
        return partial(_unpin, self._cuda, self._gpu, address)

    def follow(self) -> None:
        self._stream.wait_event(self._cuda.get_current_stream().record())

    def lead(self) -> None:
        with self._gpu:
            self._cuda.get_current_stream().wait_event(self._stream.record())

    def fetch(self, tensors: Sequence[Any], destination: Bytes) -> None:
        start = destination.ctypes.data
        for array in tensors:
            self._start(start, array.data.ptr, array.nbytes, self._cuda.runtime.memcpyDeviceToHost)
            start += array.nbytes

    def put(self, source: Bytes, tensor: Any) -> None:
        self._start(
            tensor.data.ptr,
            source.ctypes.data,
            tensor.nbytes,
            self._cuda.runtime.memcpyHostToDevice,
        )

    def mark(self) -> Wait:
        with self._gpu:
            wait: Wait = self._stream.record().synchronize
        return wait

    def _start(self, destination: int, source: int, size_bytes: int, direction: int) -> None:
        """Start a copy between two addresses."""
        with self._gpu:
            self._cuda.runtime.memcpyAsync(
                destination, source, size_bytes, direction, self._stream.ptr
            )


def _unpin(cuda: Any, gpu: Any, address: int) -> None:
    """Unpin the memory at an address, in whatever thread this runs."""
    with gpu:
        cuda.runtime.hostUnregister(address)
