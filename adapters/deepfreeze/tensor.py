"""The tensors that the engine saves: their names, types and shapes, and where their bytes are."""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
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
"""Copy to a destination from a source of the same length, both in the host's memory.

Other threads run meanwhile.
"""

SAFETENSORS_TYPES = {  # the name in numpy or ml_dtypes: (the name in the file, bytes of an element)
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
    """The part of a training step that may change a tensor's memory, and so when it is copied."""

    # batch-norm statistics, random generators: copied before `save` returns
    FORWARD = 0
    # weights, optimizer: copied before `staged` returns
    UPDATE = 1
    # memory that nothing changes: nobody waits for the copy
    NEVER = 2


@dataclass(frozen=True)
class Spec:
    """The name, type and shape of a tensor.

    `local` is true if every rank has bytes of its own for it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    changes: Changes = Changes.UPDATE
    local: bool = False

    @cached_property
    def size_bytes(self) -> int:
        """The size of all elements, in bytes."""
        return SAFETENSORS_TYPES[self.dtype][1] * math.prod(self.shape)


class Late:
    """A source whose bytes are looked up only when they are copied.

    The background does that then, and the training does not wait for it in `save`. On a device it
    waits for the first of them.
    """

    # a state has hundreds of these, and they are made while the training waits
    __slots__ = ("_look_up", "_tensor")

    def __init__(self, look_up: Callable[[Any], Memory], tensor: Any) -> None:
        self._look_up = look_up
        self._tensor = tensor

    def look_up(self) -> Memory:
        """Return the tensor's memory: on the host as it is, on a device as a `Remote`."""
        return self._look_up(self._tensor)


class Device(ABC):
    """A device that holds tensors outside of the host's memory and copies them itself.

    Its copies run one after the other, in parallel with what it computes. Its tensors are flat
    arrays of bytes that can be sliced. Any thread may call these methods.
    """

    @abstractmethod
    def pin(self, memory: memoryview) -> Unpin:
        """Make host memory accessible to the device, and return a function that undoes it."""

    @abstractmethod
    def follow(self) -> None:
        """Make later copies wait for the computations that this thread has started."""

    @abstractmethod
    def lead(self) -> None:
        """Make computations that this thread starts later wait for the copies started until now.

        The thread itself does not wait.
        """

    @abstractmethod
    def fetch(self, tensors: Sequence[Any], destination: Bytes) -> None:
        """Start to copy tensors to host memory, one directly after the other."""

    @abstractmethod
    def put(self, source: Bytes, tensor: Any) -> None:
        """Start to copy host memory to a tensor of the same length."""

    @abstractmethod
    def mark(self) -> Wait:
        """Return a function that waits for all copies that have been started until now.

        The function raises the error of a copy that failed.
        """


@dataclass(frozen=True, slots=True)
class Remote:
    """The memory of a tensor on a device."""

    device: Device
    tensor: Any

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, part: slice) -> Remote:
        return Remote(self.device, self.tensor[part])


Memory = Bytes | Remote
Source = Memory | Late
"""A tensor's memory, or an object that looks it up later."""


def look_up(source: Source) -> Memory:
    """Return the memory of a source."""
    return source.look_up() if isinstance(source, Late) else source


def copy(source: Memory, destination: Bytes, on_host: HostCopy = np.copyto) -> None:
    """Copy to host memory of the same length, with `on_host` if the source is host memory too.

    A copy from a device is only started.
    """
    if isinstance(source, Remote):
        source.device.fetch([source.tensor], destination)
    else:
        on_host(destination, source)


def copy_together(sources: Sequence[Memory], destination: Bytes) -> None:
    """Copy to host memory, one source directly after the other.

    A copy from a device is only started. Neighbours of the same kind are copied by one call,
    because a state has hundreds of small tensors and a call takes longer than the copy of one.
    """
    start = 0
    for kind, run in groupby(sources, type):
        neighbours: list[Any] = list(run)
        stop = start + sum(map(len, neighbours))
        if kind is Remote:
            tensors = [source.tensor for source in neighbours]
            neighbours[0].device.fetch(tensors, destination[start:stop])
        else:
            np.concatenate(neighbours, out=destination[start:stop])
        start = stop


def bring(source: Bytes, target: Memory, on_host: HostCopy = np.copyto) -> None:
    """Copy host memory to a target of the same length, with `on_host` if that is host memory too.

    A copy to a device is only started.
    """
    if isinstance(target, Remote):
        target.device.put(source, target.tensor)
    else:
        on_host(target, source)


def spec_of(leaf: Leaf, changes: Changes) -> Spec:
    """Return the description of a leaf that the engine needs."""
    is_local = not isinstance(leaf.placement, Replicated)
    return Spec(leaf.name, leaf.dtype, tuple(leaf.shape), changes, is_local)


def changed_by(role: Role) -> Changes:
    """Return when a training that works in place changes the leaves of a role."""
    return Changes.FORWARD if role in (Role.BUFFER, Role.RNG) else Changes.UPDATE


def bytes_of(buffer: Any) -> Bytes:
    """Return the memory of a contiguous buffer as an array of bytes, without a copy.

    The array can be written to if the buffer can.
    """
    return np.frombuffer(buffer, dtype=np.uint8)


def memory_at(address: int, size_bytes: int) -> Bytes:
    """Return the memory at an address as a writable array of bytes.

    The caller must know that the memory stays valid and that nobody else uses it.
    """
    return bytes_of(_array_of(size_bytes).from_address(address))


@lru_cache(maxsize=1024)
def _array_of(size_bytes: int) -> type[ctypes.Array[ctypes.c_char]]:
    # A state has many tensors of few sizes, and making such a type takes longer than all the rest.
    return ctypes.c_char * size_bytes
