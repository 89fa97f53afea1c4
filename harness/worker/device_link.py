"""The link between a GPU's memory and the host's: how fast it moves bytes through pinned memory.

The transfers go through the driver library alone. So they are the same for every framework, and no
framework's copies have a part in their own ceiling. Large transfers of pinned memory are what
nvbandwidth measures as `host_to_device_memcpy_ce` and `device_to_host_memcpy_ce`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cached_property

from harness.worker.clock import now_ns

RING_BYTES = 64 << 20
# The stream does not wait for the work of the framework's stream.
_NON_BLOCKING = 1
_LIBRARY = "libcuda.so.1"

_Address = ctypes.c_uint64
_Handle = ctypes.c_void_p
_Start = Callable[[int], None]


class DriverError(RuntimeError):
    """A call of the CUDA driver that failed."""


class DeviceLink:
    """Transfers between the host and one GPU.

    They move a ring of `RING_BYTES` again and again, so that they take this much memory on each
    side however large the state is. The ring is freed at the end of each transfer.
    """

    def __init__(self, gpu: int) -> None:
        """Take the number of the GPU among those that this process sees."""
        self._gpu = gpu

    def to_host_ns(self, total_bytes: int) -> int:
        """Copy `total_bytes` from the GPU to pinned memory, and return the nanoseconds.

        Raises OSError where there is no driver, and DriverError where a call of it fails.
        """
        with self._ring() as ring:
            return ring.timed(ring.start_to_host, total_bytes)

    def to_device_ns(self, total_bytes: int) -> int:
        """Copy `total_bytes` from pinned memory to the GPU, and return the nanoseconds.

        Raises OSError where there is no driver, and DriverError where a call of it fails.
        """
        with self._ring() as ring:
            return ring.timed(ring.start_to_device, total_bytes)

    @contextlib.contextmanager
    def _ring(self) -> Iterator[_Ring]:
        """Make the framework's context current, and give memory in it for the block."""
        driver = self._driver
        with driver.context(self._gpu):
            ring = _Ring(driver)
            try:
                yield ring
            finally:
                ring.free()

    @cached_property
    def _driver(self) -> _Driver:
        return _Driver()


class _Ring:
    """Pinned memory, as much memory on the GPU, and a stream of their own."""

    def __init__(self, driver: _Driver) -> None:
        self._driver = driver
        self._host = _Handle()
        self._device = _Address()
        self._stream = _Handle()
        driver.call("cuMemHostAlloc", ctypes.byref(self._host), ctypes.c_size_t(RING_BYTES), 0)
        driver.call("cuMemAlloc_v2", ctypes.byref(self._device), ctypes.c_size_t(RING_BYTES))
        driver.call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        # The first touch of the memory is no part of a transfer.
        self.timed(self.start_to_device, RING_BYTES)
        self.timed(self.start_to_host, RING_BYTES)

    def timed(self, start: _Start, total_bytes: int) -> int:
        """Start copies of `total_bytes` in all, and return the nanoseconds until all are done."""
        begin = now_ns()
        left_bytes = total_bytes
        while left_bytes > 0:
            start(min(left_bytes, RING_BYTES))
            left_bytes -= RING_BYTES
        self._driver.call("cuStreamSynchronize", self._stream)
        return now_ns() - begin

    def start_to_host(self, size_bytes: int) -> None:
        size = ctypes.c_size_t(size_bytes)
        self._driver.call("cuMemcpyDtoHAsync_v2", self._host, self._device, size, self._stream)

    def start_to_device(self, size_bytes: int) -> None:
        size = ctypes.c_size_t(size_bytes)
        self._driver.call("cuMemcpyHtoDAsync_v2", self._device, self._host, size, self._stream)

    def free(self) -> None:
        self._driver.call("cuStreamDestroy_v2", self._stream)
        self._driver.call("cuMemFree_v2", self._device)
        self._driver.call("cuMemFreeHost", self._host)


class _Driver:
    """The functions of the CUDA driver API, as far as they are needed here.

    Source: CUDA Driver API reference manual, chapters on contexts, memory and streams.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises DriverError with the driver's words where it fails."""
        result = getattr(self._library, name)(*arguments)
        if result == 0:
            return
        words = ctypes.c_char_p()
        self._library.cuGetErrorString(result, ctypes.byref(words))
        reason = words.value.decode() if words.value else f"error {result}"
        raise DriverError(f"{name} of {_LIBRARY} failed: {reason}")

    @contextlib.contextmanager
    def context(self, gpu: int) -> Iterator[None]:
        """Make the context current that the framework's runtime uses on a GPU, for the block."""
        device = ctypes.c_int()
        context = _Handle()
        self.call("cuDeviceGet", ctypes.byref(device), gpu)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(context))
            self.call("cuDevicePrimaryCtxRelease_v2", device)
