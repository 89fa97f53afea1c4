"""Copying past the caches, for memory that nobody looks at again soon.

An ordinary copy first reads the memory that it is about to overwrite into the caches. So half as
many bytes again go over the memory bus. If the memory is larger than the caches, that gains
nothing, and slows down whatever else uses the memory, such as reads from a fast disk. C libraries
know that and write past the caches, but on machines with large caches they do so only for copies
of some hundred MiB, and few tensors are that large. So this module has the loop itself, which the
machine's own compiler compiles. Without a compiler, copies are ordinary ones.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from adapters.deepfreeze.tensor import Bytes

# A smaller copy goes through the caches, because its memory may well be in there, and stay there.
LARGE_BYTES = 256 << 10
_SOURCE = Path(__file__).with_name("streaming.c")
_COMPILER = "cc"
_COMPILES_AT_MOST_S = 30
_MFD_CLOEXEC = 1
_log = logging.getLogger("deepfreeze")

AddressCopy = Callable[[int, int, int], None]
"""Copies to an address from another one so many bytes."""


def copy(destination: Bytes, source: Bytes) -> None:
    """Copy between flat arrays of bytes of the same length. Other threads run meanwhile."""
    stream_copy = (
        compiled() if len(destination) >= LARGE_BYTES and _is_plain(destination, source) else None
    )
    if stream_copy is None:
        np.copyto(destination, source)
    else:
        stream_copy(destination.ctypes.data, source.ctypes.data, len(destination))


def _is_plain(destination: Bytes, source: Bytes) -> bool:
    """Return whether addresses are enough to copy.

    If not, for instance because the destination is read-only, numpy does the right thing.
    """
    return (
        destination.flags.carray and source.flags.c_contiguous and len(source) == len(destination)
    )


@cache
def compiled() -> AddressCopy | None:
    """Return the loop, or None if it cannot be compiled.

    Every process compiles it again, which takes 60 ms, into a file that exists in memory alone. So
    it always matches this source and this machine, and nobody else can replace it.
    """
    try:
        with _file_in_memory("streaming.so") as library:
            command = [_COMPILER, "-O2", "-shared", "-fPIC", "-pipe", "-o", library, str(_SOURCE)]
            subprocess.run(command, check=True, capture_output=True, timeout=_COMPILES_AT_MOST_S)
            # The library stays loaded when the file is gone.
            stream_copy = ctypes.CDLL(library).stream_copy
    # A C library without memfd_create gives an AttributeError.
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        _log.warning(
            "large copies will take longer, because the copy loop could not be compiled (%s); "
            "install a C compiler as '%s'",
            error,
            _COMPILER,
        )
        return None
    stream_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    stream_copy.restype = None
    loop: AddressCopy = stream_copy
    return loop


@contextmanager
def _file_in_memory(name: str) -> Iterator[str]:
    """Yield the path of a file that is in no folder.

    The C library makes it, because a Python that was built with an old C library has no call for
    that.
    """
    descriptor = ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), _MFD_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "memfd_create failed")
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)
