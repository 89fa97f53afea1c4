"""A CUDA stream beside the training's, for CuPy's arrays: Chainer's, and those of the raw adapter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from adapters.deepfreeze.tensor import Bytes, Device, Unpin, Wait, bytes_of


class CupyStream(Device):
    """The current GPU's."""

    def __init__(self) -> None:
        import cupy  # only where there is a GPU

        self._cuda = cupy.cuda
        self._gpu = cupy.cuda.Device()  # the current one is each thread's own
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def pin(self, memory: memoryview) -> Unpin:
        address = bytes_of(memory).ctypes.data
        with self._gpu:
            self._cuda.runtime.hostRegister(address, len(memory), 0)
        return partial(_unpin, self._cuda, self._gpu, address)

    def follow(self) -> None:
        self._stream.wait_event(self._cuda.get_current_stream().record())

    def fetch(self, tensors: Sequence[Any], destination: Bytes) -> None:
        start = destination.ctypes.data
        for array in tensors:
            self._begin(start, array.data.ptr, array.nbytes, self._cuda.runtime.memcpyDeviceToHost)
            start += array.nbytes

    def put(self, source: Bytes, tensor: Any) -> None:
        self._begin(
            tensor.data.ptr,
            source.ctypes.data,
            tensor.nbytes,
            self._cuda.runtime.memcpyHostToDevice,
        )

    def mark(self) -> Wait:
        with self._gpu:
            wait: Wait = self._stream.record().synchronize
        return wait

    def _begin(self, destination: int, source: int, size_bytes: int, direction: int) -> None:
        with self._gpu:
            self._cuda.runtime.memcpyAsync(
                destination, source, size_bytes, direction, self._stream.ptr
            )


def _unpin(cuda: Any, gpu: Any, address: int) -> None:
    with gpu:  # in whatever thread this is
        cuda.runtime.hostUnregister(address)
