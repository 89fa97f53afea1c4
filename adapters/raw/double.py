"""The public test double: a method that works, or misbehaves in one chosen way.

A harness that measures checkpoint methods must notice each of these misbehaviours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adapters.base import Entry, Framework, Method, Pending, Place
from adapters.raw.doubles import NO_FAULT, faults
from adapters.raw.files import Buffered
from adapters.raw.framework import State

_ALL_RANKS = -1
_PIECE_BYTES = 1 << 20  # takes a fraction of a millisecond to copy


class Double(Method[State]):
    """The buffered method with the misbehaviour that the option `fault` names.

    With the option `slowdown` = 1.15, a save works 15 % longer. `delay_s` makes each save wait as
    well. `on_rank` is the one rank that misbehaves; -1 stands for all ranks.
    """

    def __init__(self, place: Place, framework: Framework[State], options: dict[str, Any]) -> None:
        super().__init__(place, framework, options)
        self.slowdown = float(options.get("slowdown", 1.0))
        self.delay_s = float(options.get("delay_s", 0.0))
        misbehaves = options.get("on_rank", _ALL_RANKS) in (_ALL_RANKS, place.rank)
        fault = options.get("fault", NO_FAULT) if misbehaves else NO_FAULT
        self.inner = _class_of(fault)(place, framework, options)

    def open(self, state: State) -> None:
        self.inner.open(state)

    def save(self, state: State, path: Path) -> Pending:
        begin = time.perf_counter()
        pending = self.inner.save(state, path)
        if self.slowdown > 1:
            end = time.perf_counter()
            extra_s = (self.slowdown - 1) * (end - begin)
            _copy_until(state.host, end + extra_s)
        time.sleep(self.delay_s)
        return pending

    def load(self, state: State, path: Path) -> None:
        self.inner.load(state, path)

    def entries(self, path: Path) -> Iterator[Entry]:
        return self.inner.entries(path)

    def close(self) -> None:
        self.inner.close()


# Looking for them imports files, which must not be read while a method is opened.
_FAULTS = faults()


def _class_of(fault: str) -> type[Buffered]:
    if fault not in _FAULTS:
        raise ValueError(f"unknown fault {fault!r} (known: {', '.join(sorted(_FAULTS))})")
    return _FAULTS[fault]


def _copy_until(data: memoryview, deadline_s: float) -> None:
    """Copy piece by piece until an instant of the performance counter, as a slow method would."""
    piece = data[:_PIECE_BYTES]
    while time.perf_counter() < deadline_s:
        bytes(piece)
