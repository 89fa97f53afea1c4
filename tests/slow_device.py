"""A device for tests of the engine.

Its memory is that of the host. A thread of its own does its copies, late and in order.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from adapters.deepfreeze.tensor import Bytes, Device, Remote, Unpin, Wait, bytes_of, memory_at

_COMPUTING_S = 0.3


@dataclass(frozen=True)
class OnDevice:
    """Bytes that only the device can look at."""

    data: Bytes

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, part: slice) -> OnDevice:
        return OnDevice(self.data[part])


class SlowDevice(Device):
    """A device that copies, as a GPU does, what is there when the copy's turn comes.

    It copies only from and to memory that is pinned. With `fails_at`, the copy of that number,
    counted from 0, and all after it fail.
    """

    def __init__(self, delay_s: float = 0.002, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.pinned: set[tuple[int, int]] = set()
        self.copies = 0
        self._delay_s = delay_s
        self._copying = ThreadPoolExecutor(1)
        self._computing = ThreadPoolExecutor(1)
        self._started: list[Future[None]] = []
        self._computed: Future[None] | None = None
        self._leading: list[Future[None]] = []

    def tensors(self, state: Mapping[str, Bytes]) -> dict[str, Remote]:
        """Return tensors on this device, whose memory is the state's."""
        return {name: Remote(self, OnDevice(data)) for name, data in state.items()}

    def compute(self, what: Callable[[], None]) -> None:
        """Start to compute, in parallel with the copies. It takes as long as several of them.

        It begins after the copies that lead.
        """
        leading = self._leading

        def compute() -> None:
            wait(leading)
            time.sleep(_COMPUTING_S)
            what()

        self._computed = self._computing.submit(compute)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the device begin no copy within the block, or for half a minute at most."""
        may_begin = threading.Event()
        self._copying.submit(may_begin.wait, 30)
        try:
            yield
        finally:
            may_begin.set()

    def synchronize(self) -> None:
        """Return when everything is computed and copied."""
        if self._computed is not None:
            self._computed.result()
        self.mark()()

    @property
    def is_idle(self) -> bool:
        """True if all copies that were started have ended."""
        return all(copy.done() for copy in self._started)

    def pin(self, memory: memoryview) -> Unpin:
        pinned = (bytes_of(memory).ctypes.data, len(memory))
        self.pinned.add(pinned)
        return partial(self.pinned.remove, pinned)

    def follow(self) -> None:
        if self._computed is not None:
            self._copying.submit(wait, [self._computed])

    def lead(self) -> None:
        self._leading = list(self._started)

    def fetch(self, tensors: Sequence[Any], destination: Bytes) -> None:
        references = [_WeakMemory(tensor.data) for tensor in tensors]

        def copy() -> None:
            np.concatenate([reference.memory() for reference in references], out=destination)

        self._start(copy, destination)

    def put(self, source: Bytes, tensor: Any) -> None:
        assert len(source) == len(tensor)
        reference = _WeakMemory(tensor.data)
        self._start(lambda: np.copyto(reference.memory(), source), source)

    def mark(self) -> Wait:
        started = list(self._started)

        def wait_for_all() -> None:
            wait(started)
            for copy in started:
                copy.result()

        return wait_for_all

    def _start(self, copy: Callable[[], Any], on_host: Bytes) -> None:
        assert self._is_pinned(on_host), "not pinned"
        does_fail = self.fails_at is not None and self.copies >= self.fails_at
        self.copies += 1
        self._started.append(self._copying.submit(self._late, _fail if does_fail else copy))

    def _is_pinned(self, on_host: Bytes) -> bool:
        first = on_host.ctypes.data
        end = first + len(on_host)
        return any(start <= first and end <= start + size for start, size in self.pinned)

    def _late(self, do: Callable[[], Any]) -> None:
        time.sleep(self._delay_s)
        do()


class _WeakMemory:
    """The address of a tensor's memory.

    It does not keep the memory alive. Whoever asks for a copy must do that.
    """

    def __init__(self, data: Bytes) -> None:
        self._owner = weakref.ref(data if data.base is None else data.base)
        self._address = data.ctypes.data
        self._size_bytes = len(data)

    def memory(self) -> Bytes:
        owner = self._owner()
        if owner is None:
            raise RuntimeError("the tensor's memory has been given to others")
        return memory_at(self._address, self._size_bytes)


def _fail() -> None:
    raise RuntimeError("the device is lost")
