"""Copying past the caches, for what nobody looks at again soon.

An ordinary copy reads what it is about to overwrite into the caches first: half as many bytes again
go over the memory's bus. Where what is copied is larger than the caches, that is for nothing, and
slows down whatever else uses the memory, such as reads from a fast disk. C libraries know that and
write past the caches, but on machines with large caches only from some hundred MiB at once, which
few tensors have. So the loop is here, compiled by the machine's own compiler; where that cannot be,
copies are ordinary ones.
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

LARGE_BYTES = 256 << 10  # from here on: what is smaller may well be in the caches, and stay there
_SOURCE = Path(__file__).with_name("streaming.c")
_COMPILER = "cc"
_COMPILES_AT_MOST_S = 30
_CLOSE_ON_EXEC = 1  # MFD_CLOEXEC
_log = logging.getLogger("deepfreeze")

AddressCopy = Callable[[int, int, int], None]


def copy(destination: Bytes, source: Bytes) -> None:
    """Copy as `numpy.copyto` does between flat arrays of bytes of the same length; other threads run meanwhile."""
    stream_copy = (
        compiled() if len(destination) >= LARGE_BYTES and _is_plain(destination, source) else None
    )
    if stream_copy is None:
        np.copyto(destination, source)
    else:
        stream_copy(destination.ctypes.data, source.ctypes.data, len(destination))


def _is_plain(destination: Bytes, source: Bytes) -> bool:
    """Whether addresses say everything; of all else, and of what must not be written to, numpy takes care."""
    return (
        destination.flags.carray and source.flags.c_contiguous and len(source) == len(destination)
    )


@cache
def compiled() -> AddressCopy | None:
    """Return the loop, which takes the addresses of a destination and a source, and bytes; None where it cannot be compiled.

    Every process compiles it anew, in 60 ms and into a file that is memory alone: so it is always
    that of this source and this machine, and nobody else can put another in its place.
    """
    try:
        with _file_in_memory("streaming.so") as library:
            command = [_COMPILER, "-O2", "-shared", "-fPIC", "-pipe", "-o", library, str(_SOURCE)]
            subprocess.run(command, check=True, capture_output=True, timeout=_COMPILES_AT_MOST_S)
            stream_copy = ctypes.CDLL(library).stream_copy  # stays when the file is gone
    except (
        OSError,
        AttributeError,
        subprocess.SubprocessError,
    ) as error:  # AttributeError: a C library without memfd_create
        _log.warning("copies go through the caches, which takes longer: %s", error)
        return None
    stream_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    stream_copy.restype = None
    found: AddressCopy = stream_copy
    return found


@contextmanager
def _file_in_memory(name: str) -> Iterator[str]:
    """Yield the path of a file without a folder.

    By the C library: Python has the call only where it was built on a newer one.
    """
    descriptor = ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), _CLOSE_ON_EXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)
