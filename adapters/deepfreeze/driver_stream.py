"""A CUDA stream for the copies of all frameworks, through the driver library.

It asks a framework for nothing but addresses. A copy started in here takes a tenth of the time of
one that PyTorch starts, and a state has hundreds of tensors.

Source: CUDA Driver API reference manual, chapters on memory, streams and events.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from adapters.deepfreeze.tensor import Bytes, Device, Unpin, Wait
from adapters.shared.cuda_driver import (
    Address,
    Context,
    CudaDriver,
    DriverError,
    Handle,
    new_stream,
)

# An event that marks a point in a stream, and is not timed.
_WITHOUT_TIMING = 2

CurrentStream = Callable[[], int]
"""Return the number of the stream on which the calling thread lets the framework compute."""


@dataclass(frozen=True, slots=True)
class AtAddress:
    """Bytes on a GPU. `owner` is whatever keeps the memory."""

    address: int
    size_bytes: int
    owner: Any

    def __len__(self) -> int:
        return self.size_bytes

    def __getitem__(self, part: slice) -> AtAddress:
        start, stop, _ = part.indices(self.size_bytes)
        return AtAddress(self.address + start, max(stop - start, 0), self.owner)


class DriverStream(Device):
    """A stream on one GPU, in parallel with those on which a framework computes."""

    def __init__(self, gpu: int, current_stream: CurrentStream | None = None) -> None:
        """Take the number of the GPU among those that this process sees.

        Without `current_stream`, whoever gives an array to this stream makes the stream wait for
        it, by `handle`, or waits for the array before. Raises OSError where there is no driver, and
        DriverError where a call of it fails.
        """
        driver = CudaDriver()
        self._current_stream = current_stream
        self._context = Context(driver, gpu)
        with self._context:
            self._stream = new_stream(driver)
        size = ctypes.c_size_t
        self._pin = driver.function("cuMemHostRegister_v2", Handle, size, ctypes.c_uint)
        self._unpin = driver.function("cuMemHostUnregister", Handle)
        self._to_host = driver.function("cuMemcpyDtoHAsync_v2", Handle, Address, size, Handle)
        self._to_gpu = driver.function("cuMemcpyHtoDAsync_v2", Address, Handle, size, Handle)
        self._wait_for = driver.function("cuStreamWaitEvent", Handle, Handle, ctypes.c_uint)
        self._events = _Events(driver, self._context)
        end = weakref.finalize(self, _end, driver, self._context, self._stream)
        # At the end of the process the driver may be gone, and it takes everything back itself.
        end.atexit = False

    @property
    def handle(self) -> int:
        """The stream as a number, as frameworks take it."""
        return self._stream.value or 0

    def pin(self, memory: memoryview) -> Unpin:
        address = _address(memory)
        with self._context:
            self._pin(address, len(memory), 0)
        return partial(self._unpin_at, address)

    def follow(self) -> None:
        if self._current_stream is not None:
            self._let_wait(self.handle, self._current_stream())

    def lead(self) -> None:
        if self._current_stream is not None:
            self._let_wait(self._current_stream(), self.handle)

    def fetch(self, tensors: Sequence[AtAddress], destination: Bytes) -> None:
        if not len(destination):
            return
        start = _address(destination)
        with self._context:
            for tensor in tensors:
                if tensor.size_bytes:
                    self._to_host(start, tensor.address, tensor.size_bytes, self._stream)
                    start += tensor.size_bytes

    def put(self, source: Bytes, tensor: AtAddress) -> None:
        if tensor.size_bytes:
            with self._context:
                self._to_gpu(tensor.address, _address(source), tensor.size_bytes, self._stream)

    def mark(self) -> Wait:
        return _Mark(self._events, self.handle)

    def _let_wait(self, stream: int, other: int) -> None:
        """Make what is started later on a stream wait for what was started on another."""
        mark = _Mark(self._events, other)
        with self._context:
            self._wait_for(stream, mark.event, 0)

    def _unpin_at(self, address: int) -> None:
        with self._context:
            self._unpin(address)


class _Events:
    """The functions of the driver that make events and wait for them."""

    def __init__(self, driver: CudaDriver, context: Context) -> None:
        self.context = context
        self.create = driver.function("cuEventCreate", Handle, ctypes.c_uint)
        self.record = driver.function("cuEventRecord", Handle, Handle)
        self.synchronize = driver.function("cuEventSynchronize", Handle)
        self.destroy = driver.function("cuEventDestroy_v2", Handle)


class _Mark:
    """A point in a stream. A call waits until the stream has reached it."""

    def __init__(self, events: _Events, stream: int) -> None:
        self._events = events
        self.event = Handle()
        with events.context:
            events.create(ctypes.byref(self.event), _WITHOUT_TIMING)
            events.record(self.event, stream)

    def __call__(self) -> None:
        """Wait. Raises DriverError where a copy failed."""
        with self._events.context:
            self._events.synchronize(self.event)

    def __del__(self) -> None:
        # At the end of the process the driver may be gone. A stream that waits for an event goes on
        # to do so.
        with suppress(Exception), self._events.context:
            self._events.destroy(self.event)


def _end(driver: CudaDriver, context: Context, stream: Handle) -> None:
    """Give a stream back, and the context."""
    # The GPU may have failed.
    with suppress(DriverError):
        with context:
            driver.call("cuStreamDestroy_v2", stream)
        context.release()


def _address(memory: Any) -> int:
    """Return the address of a writable buffer. numpy takes three times as long to tell it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
