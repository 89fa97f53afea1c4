"""A device for tests of the engine: its memory is the host's, and its copies are done late, in order, by a thread of its own."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
    """Like a GPU, it copies what is there when the copy's turn comes, and only from and to memory that is pinned.

    With `fails_at`, that copy, counted from 0, and all after it fail.
    """

    def __init__(self, delay_s: float = 0.002, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.pinned: set[tuple[int, int]] = set()
        self.copies = 0
        self.most_under_way = 0
        self._delay_s = delay_s
        self._copying = ThreadPoolExecutor(1)
        self._computing = ThreadPoolExecutor(1)
        self._begun: list[Future[None]] = []
        self._computed: Future[None] | None = None

    def tensors(self, state: Mapping[str, Bytes]) -> dict[str, Remote]:
        """Return tensors on this device, whose memory is the state's."""
        return {name: Remote(self, OnDevice(data)) for name, data in state.items()}

    def compute(self, what: Callable[[], None]) -> None:
        """Begin to compute, beside the copies, which does not end before several of them would have."""

        def compute() -> None:
            time.sleep(_COMPUTING_S)
            what()

        self._computed = self._computing.submit(compute)

    def synchronize(self) -> None:
        """Return when everything is computed and copied."""
        if self._computed is not None:
            self._computed.result()
        self.mark()()

    @property
    def is_idle(self) -> bool:
        """Whether all copies that have begun have ended."""
        return all(copy.done() for copy in self._begun)

    def pin(self, memory: memoryview) -> Unpin:
        place = bytes_of(memory).ctypes.data, len(memory)
        self.pinned.add(place)
        return partial(self.pinned.remove, place)

    def follow(self) -> None:
        if self._computed is not None:
            self._copying.submit(wait, [self._computed])

    def fetch(self, tensors: Sequence[Any], destination: Bytes) -> None:
        places = [_Place(tensor.data) for tensor in tensors]
        self._begin(
            lambda: np.concatenate([place.memory() for place in places], out=destination),
            destination,
        )

    def put(self, source: Bytes, tensor: Any) -> None:
        assert len(source) == len(tensor)
        place = _Place(tensor.data)
        self._begin(lambda: np.copyto(place.memory(), source), source)

    def mark(self) -> Wait:
        begun = list(self._begun)

        def wait_for_all() -> None:
            wait(begun)
            for copy in begun:
                copy.result()

        return wait_for_all

    def _begin(self, copy: Callable[[], Any], on_host: Bytes) -> None:
        start = on_host.ctypes.data
        assert any(
            place <= start and start + len(on_host) <= place + size for place, size in self.pinned
        ), "not pinned"
        does_fail = self.fails_at is not None and self.copies >= self.fails_at
        self.copies += 1
        self._begun.append(self._copying.submit(self._late, _fail if does_fail else copy))
        self.most_under_way = max(
            self.most_under_way, sum(not begun.done() for begun in self._begun)
        )

    def _late(self, do: Callable[[], Any]) -> None:
        time.sleep(self._delay_s)
        do()


class _Place:
    """Where a tensor's memory is: the device does not keep it, which is up to who asks for a copy."""

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
