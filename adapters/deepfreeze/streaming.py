"""Copying past the caches, for what nobody looks at again soon.

An ordinary copy reads what it is about to overwrite into the caches first: half as many bytes again go over the memory's bus. Where
what is copied is larger than the caches, that is for nothing, and slows down whatever else uses the memory, such as reads from a
fast disk. C libraries know that and write past the caches, but on machines with large caches only from some hundred MiB at once,
which no tensor has. So the loop is here, compiled by the machine's own compiler; where that has none, copies are ordinary ones.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from adapters.deepfreeze.tensor import Bytes

_SOURCE = Path(__file__).with_name("streaming.c")
_COMPILER = "cc"
_COMPILES_AT_MOST_S = 30
_LARGE_BYTES = 256 << 10  # from here on: what is smaller may well be in the caches, and stay there

AddressCopy = Callable[[int, int, int], None]


def copy(destination: Bytes, source: Bytes) -> None:
    """Copy as `numpy.copyto` does between flat arrays of bytes of the same length; other threads run meanwhile."""
    stream_copy = compiled() if len(destination) >= _LARGE_BYTES else None
    if stream_copy is None:
        np.copyto(destination, source)
    else:
        stream_copy(destination.ctypes.data, source.ctypes.data, len(destination))


@cache
def compiled() -> AddressCopy | None:
    """Return the loop, which takes the addresses of a destination and a source, and bytes; None where it cannot be compiled.

    Compiled in 50 ms by every process anew, and kept nowhere: so it is always that of this source and this machine.
    """
    try:
        with tempfile.NamedTemporaryFile(suffix=".so") as library:
            command = [_COMPILER, "-O2", "-shared", "-fPIC", "-o", library.name, str(_SOURCE)]
            subprocess.run(command, check=True, capture_output=True, timeout=_COMPILES_AT_MOST_S)
            function = ctypes.CDLL(library.name).stream_copy  # stays in memory when the file is gone
    except (OSError, subprocess.SubprocessError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = None
    copies: AddressCopy = function
    return copies
