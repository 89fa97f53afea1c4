"""Records for the driver in a file, and a position in shared memory.

The position says where the worker stands, and is what remains when it is killed. Setting it costs
well under a microsecond, so it may stand next to the clock.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from harness.wire.phases import DONE, POSITION, position_path, records_path
from harness.wire.records import FailureRecord, Record, Status, to_line


class Output:
    """A rank's records and position."""

    def __init__(self, folder: Path, rank: int, process: int, on_nodes: bool = False) -> None:
        """Open a rank's files in `folder`.

        `on_nodes` says that the ranks are on several nodes, while the driver is on one of them.
        """
        self._on_nodes = on_nodes
        self.rank = rank
        self.process = process
        self._records = records_path(folder, rank).open("a", buffering=1)
        position_path(folder, rank).write_bytes(bytes(POSITION.size))
        with position_path(folder, rank).open("r+b") as file:
            self._position = mmap.mmap(file.fileno(), POSITION.size)
        self._changes = 0
        self._reached = 0
        self._task = -1
        self.phase = "start"
        self.enter("start")
        self.task(-1)

    def task(self, index: int) -> None:
        """Note the task that the following phases belong to; -1 for none.

        No clock runs here, so a driver on another node is informed as well.
        """
        self._task = index
        if self._on_nodes:
            self._show_on_all_nodes()

    def enter(self, phase: str) -> None:
        """Note the phase that begins now."""
        self.phase = phase
        self._changes += 1
        if not self._on_nodes:
            self._reached = self._changes
        self._set_position()

    def finish(self) -> None:
        """Note that all work is done, also for a driver on another node."""
        self.enter(DONE)
        self._show_on_all_nodes()

    def write(self, record: Record) -> None:
        """Append one record."""
        self._records.write(to_line(record))

    def fail(self, case: str, reason: str, status: Status = "failed") -> None:
        """Append the failure of a case in the present phase."""
        record = FailureRecord(
            kind="failure",
            case=case,
            process=self.process,
            rank=self.rank,
            status=status,
            phase=self.phase,
            reason=reason,
        )
        self.write(record)

    def _set_position(self) -> None:
        POSITION.pack_into(
            self._position, 0, self._changes, self._reached, self._task, self.phase.encode()
        )

    def _show_on_all_nodes(self) -> None:
        """Flush the position, because a network file system shows a mapped page only then."""
        self._reached = self._changes
        self._set_position()
        self._position.flush()
