"""What the engine saves: named tensors, and where their bytes are."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.base import Leaf, Replicated
from workloads import Role

Bytes = NDArray[np.uint8]
Copy = Callable[[Bytes, int], None]
"""Fill the destination with a tensor's bytes, from the given one on; return once they are there."""
HostCopy = Callable[[Bytes, Bytes], None]
"""Copy to a destination in the host's memory from a source there, of the same length; other threads run meanwhile."""


SAFETENSORS_TYPES = {  # numpy's name, or ml_dtypes': (the format's name, bytes an item)
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "uint16": ("U16", 2),
    "int16": ("I16", 2),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "uint32": ("U32", 4),
    "int32": ("I32", 4),
    "float32": ("F32", 4),
    "uint64": ("U64", 8),
    "int64": ("I64", 8),
    "float64": ("F64", 8),
    "complex64": ("C64", 8),
}


class Changes(IntEnum):
    """What may change a tensor's memory while it is being saved."""

    FORWARD = 0  # batch-norm statistics, random generators: copied before `save` returns
    UPDATE = 1  # weights, optimizer: copied before `staged` returns
    NEVER = 2  # nothing does: nobody waits for the copy


@dataclass(frozen=True)
class Spec:
    """A tensor's name, type and shape; `local` where each rank has its own bytes of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    changes: Changes = Changes.UPDATE
    local: bool = False

    @property
    def size_bytes(self) -> int:
        """The bytes of all items."""
        return SAFETENSORS_TYPES[self.dtype][1] * math.prod(self.shape)


class Late:
    """A source whose bytes are looked up when they are copied: in the background, not while the training waits for `save`."""

    __slots__ = ("_look_up", "_tensor")  # there are hundreds, made while the training waits

    def __init__(self, look_up: Callable[[Any], Bytes], tensor: Any) -> None:
        self._look_up = look_up
        self._tensor = tensor

    def look_up(self) -> Bytes:
        """Return the bytes on the host: the tensor's own memory where it lies there."""
        return self._look_up(self._tensor)


Source = Bytes | Late | Copy
"""A tensor's memory, what finds it, or what copies it from where it is."""


def found(source: Source) -> Bytes | Copy:
    """Look up what is late."""
    return source.look_up() if isinstance(source, Late) else source


def copy(source: Bytes | Copy, destination: Bytes, skip_bytes: int, on_host: HostCopy = np.copyto) -> None:
    """Copy as many bytes as the destination has, from the source's byte `skip_bytes` on; `on_host` where both are in memory."""
    if isinstance(source, np.ndarray):
        on_host(destination, source[skip_bytes : skip_bytes + len(destination)])
    else:
        source(destination, skip_bytes)


def copy_together(parts: Sequence[tuple[Bytes | Copy, int, int]], destination: Bytes) -> None:
    """Copy parts of several tensors, each given as (source, first byte, bytes), to where they lie one behind the other.

    Those in the host's memory are copied by one call: of hundreds of small ones, each call takes longer than the copy.
    """
    if all(isinstance(source, np.ndarray) for source, _, _ in parts):
        np.concatenate([source[skip : skip + size] for source, skip, size in parts], out=destination)  # type: ignore[index]
        return
    start = 0
    for source, skip_bytes, size_bytes in parts:
        copy(source, destination[start : start + size_bytes], skip_bytes)
        start += size_bytes


def spec_of(leaf: Leaf, changes: Changes) -> Spec:
    """Return what the engine has to know of a leaf."""
    return Spec(leaf.name, leaf.dtype, tuple(leaf.shape), changes, not isinstance(leaf.placement, Replicated))


def changed_by(role: Role) -> Changes:
    """Return when training changes leaves of the role, where it does so in place."""
    return Changes.FORWARD if role in (Role.BUFFER, Role.RNG) else Changes.UPDATE


def bytes_of(buffer: Any) -> Bytes:
    """Return the memory behind a contiguous buffer, without a copy; writable where the buffer is."""
    return np.frombuffer(buffer, dtype=np.uint8)


def memory_at(address: int, size_bytes: int) -> Bytes:
    """Return memory by its address, writable: for whoever knows that it stays there, and that nobody else looks at it."""
    return bytes_of(_array_of(size_bytes).from_address(address))


@lru_cache(maxsize=1024)
def _array_of(size_bytes: int) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * size_bytes  # to make such a type takes longer than all else: a state has a few sizes and many tensors
