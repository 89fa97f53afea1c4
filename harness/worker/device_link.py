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

from adapters.shared.cuda_driver import (
    Address,
    CudaDriver,
    Handle,
    current_context,
    new_stream,
)
from harness.worker.clock import now_ns

RING_BYTES = 64 << 20

_Start = Callable[[int], None]


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
        with current_context(driver, self._gpu):
            ring = _Ring(driver)
            try:
                yield ring
            finally:
                ring.free()

    @cached_property
    def _driver(self) -> CudaDriver:
        return CudaDriver()


class _Ring:
    """Pinned memory, as much memory on the GPU, and a stream of their own."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._host = Handle()
        self._device = Address()
        driver.call("cuMemHostAlloc", ctypes.byref(self._host), ctypes.c_size_t(RING_BYTES), 0)
        driver.call("cuMemAlloc_v2", ctypes.byref(self._device), ctypes.c_size_t(RING_BYTES))
        self._stream = new_stream(driver)
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
