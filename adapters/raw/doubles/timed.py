"""Saves that go wrong only where they are timed, with no training between save and finish.

The saves of a real training would be right, and those of a benchmark wrong. Mistakes like these
come from buffers that are used again too early, and from errors that a thread keeps to itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from adapters.base import Framework, Pending, Place
from adapters.raw.doubles import Fault
from adapters.raw.framework import State


class _Timed(Fault):
    """Save well, and spoil the file in `finished` if training has not gone on meanwhile."""

    def save(self, state: State, path: Path) -> Pending:
        super().save(state, path)
        return _Spoiling(self, state, path)

    def spoil(self, file: Path, state: State) -> None:
        """Make a file wrong."""


class _Spoiling(Pending):
    def __init__(self, method: _Timed, state: State, path: Path) -> None:
        self.method = method
        self.state = state
        self.file = method.file(path, method.place.rank)
        self.position = int(state.leaves["position/step"][0])

    def finished(self) -> None:
        if int(self.state.leaves["position/step"][0]) == self.position:
            self.method.spoil(self.file, self.state)


class LostNoSpace(_Timed):
    """Lose an error of a full disk, so that the end of the file is missing."""

    name = "lost-no-space"

    def spoil(self, file: Path, state: State) -> None:
        os.truncate(file, file.stat().st_size * 99 // 100)


class Hole(_Timed):
    """Leave a hole of the right size."""

    name = "hole"

    def spoil(self, file: Path, state: State) -> None:
        size_bytes = file.stat().st_size
        os.truncate(file, 0)
        os.truncate(file, size_bytes)


class StaleBuffer(_Timed):
    """Write the buffer of the save before."""

    name = "stale-buffer"

    def __init__(self, place: Place, framework: Framework[State], options: dict[str, Any]) -> None:
        super().__init__(place, framework, options)
        self._buffer = b""

    def spoil(self, file: Path, state: State) -> None:
        stale, self._buffer = self._buffer, bytes(state.to_host())
        if stale:
            self.write_copy(file.parent, stale, state.local_start)
