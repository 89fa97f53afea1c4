"""What a worker tells its driver: records in a file, and a mark in shared memory that says where it stands.

The mark is what remains when the worker is killed. Setting it costs well under a microsecond, so it may stand next to the clock.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from harness.record import FailureRecord, Record, Status, to_line

_MARK = struct.Struct("<Qi20s")  # changes so far, index of the task (-1: none), phase
DONE = "done"


def records_path(folder: Path, rank: int) -> Path:
    """Where a rank writes its records."""
    return folder / f"rank-{rank:05d}.jsonl"


def mark_path(folder: Path, rank: int) -> Path:
    """Where a rank marks its phase."""
    return folder / f"rank-{rank:05d}.mark"


class Output:
    """A rank's records and mark."""

    def __init__(self, folder: Path, rank: int, process: int) -> None:
        self.rank = rank
        self.process = process
        self._records = records_path(folder, rank).open("a", buffering=1)
        mark_path(folder, rank).write_bytes(bytes(_MARK.size))
        with mark_path(folder, rank).open("r+b") as file:
            self._mark = mmap.mmap(file.fileno(), _MARK.size)
        self._changes = 0
        self._task = -1
        self.phase = "start"
        self.enter("start")

    def task(self, index: int) -> None:
        """Say which task the following phases belong to; -1 for none."""
        self._task = index

    def enter(self, phase: str) -> None:
        """Say which phase begins now."""
        self.phase = phase
        self._changes += 1
        _MARK.pack_into(self._mark, 0, self._changes, self._task, phase.encode())

    def finish(self) -> None:
        """Say that all work is done, to a driver on another host too: a network file system shows a mapped page once flushed."""
        self.enter(DONE)
        self._mark.flush()

    def write(self, record: Record) -> None:
        """Append one record."""
        self._records.write(to_line(record))

    def fail(self, case: str, reason: str, status: Status = "failed") -> None:
        """Append the failure of a case in the present phase."""
        self.write(FailureRecord("failure", case, self.process, self.rank, status, self.phase, reason))


def read_mark(folder: Path, rank: int) -> tuple[int, int, str]:
    """Return (changes, task index, phase) of a rank, also of one that is gone; (0, -1, "launch") before it began."""
    try:
        changes, task, phase = _MARK.unpack(mark_path(folder, rank).read_bytes())
    except (FileNotFoundError, struct.error):
        return 0, -1, "launch"
    return changes, task, phase.rstrip(b"\0").decode(errors="replace") or "launch"
