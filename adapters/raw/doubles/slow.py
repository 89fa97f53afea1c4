"""Saves that take longer than a scheduler waits, in a call that gives no signal handler a chance.

They wait for a time, because the time is their fault.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from adapters.base import Pending
from adapters.raw.doubles import Fault
from adapters.raw.doubles.strikes import Renamed
from adapters.raw.files import Buffered
from adapters.raw.framework import State

SAVE_S = 3


class SlowToRename(Renamed):
    """Rename what is complete some seconds later."""

    name = "slow-to-rename"

    def save(self, state: State, path: Path) -> Pending:
        return _Slow(lambda: super(SlowToRename, self).save(state, path))


class SlowInPlace(Fault):
    """Create the file under its final name, and fill it some seconds later."""

    name = "slow-in-place"

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir()
        self.file(path, self.place.rank).touch()
        return _Slow(lambda: Buffered.save(self, state, path))


class _Slow(Pending):
    """A save that does its work in the end, after a wait that holds the interpreter."""

    def __init__(self, work: Callable[[], Pending]) -> None:
        self._work = work

    def staged(self) -> None:
        """The state may not change before `finished`, which works on it."""

    def finished(self) -> None:
        # A library that Python calls this way keeps its lock, and no other thread runs meanwhile.
        ctypes.PyDLL(None).sleep(SAVE_S)
        self._work()
