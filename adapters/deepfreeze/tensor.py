"""What the engine saves: named tensors, and where their bytes are."""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.base import Leaf, Replicated
from workloads import Role

Bytes = NDArray[np.uint8]
Wait = Callable[[], None]
Unpin = Callable[[], None]
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

    def __init__(self, look_up: Callable[[Any], Memory], tensor: Any) -> None:
        self._look_up = look_up
        self._tensor = tensor

    def look_up(self) -> Memory:
        """Return the bytes: the tensor's own memory where it lies on the host, or what has it on a device."""
        return self._look_up(self._tensor)


class Device(ABC):
    """What holds tensors that are not in the host's memory.

    Its copies run one after the other, beside what it computes.

    Its tensors are flat, of bytes, and can be sliced. Any thread may ask.
    """

    @abstractmethod
    def pin(self, memory: memoryview) -> Unpin:
        """Make memory of the host reachable for the device's own copies, and return what takes that back."""

    @abstractmethod
    def follow(self) -> None:
        """Have the copies that begin from now on wait for what this thread has asked the device to compute."""

    @abstractmethod
    def fetch(self, tensors: Sequence[Any], destination: Bytes) -> None:
        """Begin to copy tensors to where they lie one behind the other."""

    @abstractmethod
    def put(self, source: Bytes, tensor: Any) -> None:
        """Begin to copy to a tensor of the same length."""

    @abstractmethod
    def mark(self) -> Wait:
        """Return what waits for all copies that have begun until now.

        It raises what went wrong with them.
        """


@dataclass(frozen=True, slots=True)
class Remote:
    """A tensor's memory on a device."""

    device: Device
    tensor: Any

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, part: slice) -> Remote:
        return Remote(self.device, self.tensor[part])


Memory = Bytes | Remote
Source = Memory | Late
"""A tensor's memory, or what finds it."""


def found(source: Source) -> Memory:
    """Look up what is late."""
    return source.look_up() if isinstance(source, Late) else source


def copy(source: Memory, destination: Bytes, on_host: HostCopy = np.copyto) -> None:
    """Copy to memory of the same length, `on_host` where the source is there too.

    From a device the copy only begins here.
    """
    if isinstance(source, Remote):
        source.device.fetch([source.tensor], destination)
    else:
        on_host(destination, source)


def copy_together(sources: Sequence[Memory], destination: Bytes) -> None:
    """Copy to where the sources lie one behind the other. From a device the copies only begin here.

    Neighbours are copied by one call: of hundreds of small ones, each call takes longer than the
    copy.
    """
    start = 0
    for kind, run in groupby(sources, type):
        together: list[Any] = list(run)
        stop = start + sum(map(len, together))
        if kind is Remote:
            together[0].device.fetch(
                [source.tensor for source in together], destination[start:stop]
            )
        else:
            np.concatenate(together, out=destination[start:stop])
        start = stop


def bring(source: Bytes, target: Memory, on_host: HostCopy = np.copyto) -> None:
    """Copy to a target of the same length, `on_host` where it is there.

    To a device the copy only begins here.
    """
    if isinstance(target, Remote):
        target.device.put(source, target.tensor)
    else:
        on_host(target, source)


def spec_of(leaf: Leaf, changes: Changes) -> Spec:
    """Return what the engine has to know of a leaf."""
    return Spec(
        leaf.name,
        leaf.dtype,
        tuple(leaf.shape),
        changes,
        not isinstance(leaf.placement, Replicated),
    )


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
    # to make such a type takes longer than all else: a state has a few sizes and many tensors
    return ctypes.c_char * size_bytes
