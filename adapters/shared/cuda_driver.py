"""The CUDA driver API, as far as it is needed here, without any framework.

Source: CUDA Driver API reference manual, chapters on contexts, memory and streams.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

LIBRARY = "libcuda.so.1"
# A stream that does not wait for the work of the framework's stream.
_NON_BLOCKING = 1

Address = ctypes.c_uint64
Handle = ctypes.c_void_p
Function = Callable[..., None]


class DriverError(RuntimeError):
    """A call of the CUDA driver that failed."""


class CudaDriver:
    """The functions of the driver library."""

    def __init__(self) -> None:
        """Load the library. Raises OSError where there is none, and DriverError where it fails."""
        self._library = ctypes.CDLL(LIBRARY)
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises DriverError with the driver's words where it fails."""
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise self._error(name, result)

    def function(self, name: str, *types: Any) -> Function:
        """Return a function that takes plain numbers, and fails as `call` does.

        A state has hundreds of arrays, and each `call` takes three times as long.
        """
        function = self._library[name]
        function.argtypes = types

        def call(*arguments: object) -> None:
            result = function(*arguments)
            if result != 0:
                raise self._error(name, result)

        return call

    def _error(self, name: str, result: int) -> DriverError:
        words = ctypes.c_char_p()
        self._library.cuGetErrorString(result, ctypes.byref(words))
        reason = words.value.decode() if words.value else f"error {result}"
        return DriverError(f"{name} of {LIBRARY} failed: {reason}")


class Context:
    """The context that every CUDA runtime of this process uses on one GPU.

    As a `with` block it is current in the thread.
    """

    def __init__(self, driver: CudaDriver, gpu: int) -> None:
        """Take the number of the GPU among those that this process sees."""
        self._driver = driver
        self._device = ctypes.c_int()
        self._handle = Handle()
        driver.call("cuDeviceGet", ctypes.byref(self._device), gpu)
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._handle), self._device)
        self._push = driver.function("cuCtxPushCurrent_v2", Handle)
        self._pop = driver.function("cuCtxPopCurrent_v2", Handle)
        self._popped = ctypes.byref(Handle())

    def __enter__(self) -> None:
        self._push(self._handle)

    def __exit__(self, *error: object) -> None:
        self._pop(self._popped)

    def release(self) -> None:
        """Give the context back. It ends with its last user."""
        self._driver.call("cuDevicePrimaryCtxRelease_v2", self._device)


@contextlib.contextmanager
def current_context(driver: CudaDriver, gpu: int) -> Iterator[None]:
    """Make the context of a GPU current for the block, and give it back behind that."""
    context = Context(driver, gpu)
    try:
        with context:
            yield
    finally:
        context.release()


def new_stream(driver: CudaDriver) -> Handle:
    """Return a stream that runs in parallel with all others, in the current context."""
    stream = Handle()
    driver.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
    return stream
