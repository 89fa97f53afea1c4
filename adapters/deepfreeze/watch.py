"""Waiting for other ranks of a save without waiting for a dead one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from adapters.deepfreeze.errors import CommitFailed
from adapters.deepfreeze.meeting import Mark, Meeting
from adapters.deepfreeze.processes import Process

# A rank that has not come to the meeting, and whose process runs or cannot be seen from here, is
# waited for so long.
ABSENT_S = 600.0
# A rank without a sign of life for so long is dead. That counts if its process cannot be seen from
# here, or if somebody still holds its lock.
SILENT_S = 120.0
_POLL_S = 0.001
# Between two looks whether the other ranks are alive.
_LOOK_S = 0.5


class Watch:
    """Waits for other ranks in a meeting, and raises CommitFailed when one of them is dead."""

    def __init__(
        self,
        meeting: Meeting,
        target: Path,
        ranks: frozenset[int],
        is_through: Callable[[Mark], bool],
        processes: Sequence[Process | None] = (),
    ) -> None:
        """Take the ranks to wait for, and the test of a mark that ends the wait for its rank.

        `processes` has that of every rank, as far as they are known.
        """
        self._meeting = meeting
        self._target = target
        self._ranks = ranks
        self._is_through = is_through
        self._processes = dict(enumerate(processes))
        # the ranks that have never come
        self.absent = set(ranks)
        # the ranks that came, and whose mark was not listed at the last look
        self._missed: set[int] = set()
        # the ranks that had never come at the last look, and whose processes had ended
        self._ended: set[int] = set()
        # of each rank: its last sign of life, and when this rank first saw it
        self._signs: dict[int, tuple[int, float]] = {}
        self._looked_s = 0.0
        self._waiting_since_s = 0.0

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Return when the condition holds.

        Raise CommitFailed if a rank dies on the way, or does not come in ABSENT_S.
        """
        # A rank that gives up waits a second time, and its wait began with the first.
        self._waiting_since_s = self._waiting_since_s or time.monotonic()
        next_look_s = time.monotonic() + _LOOK_S
        while not is_reached():
            if time.monotonic() > next_look_s:
                self._check_others()
                next_look_s = time.monotonic() + _LOOK_S
            time.sleep(_POLL_S)

    def _check_others(self) -> None:
        """Raise CommitFailed if one of the ranks that this one waits for is gone."""
        marks = self._meeting.marks()
        now_s = time.monotonic()
        if now_s - self._looked_s > SILENT_S / 2:
            # This rank itself has stood still, and has seen no signs.
            self._signs.clear()
        self._looked_s = now_s
        self._check_presence(marks, now_s)
        for rank, mark in marks.items():
            if rank in self._ranks and not self._is_through(mark):
                self._check_alive(mark)

    def _check_presence(self, marks: dict[int, Mark], now_s: float) -> None:
        """Raise CommitFailed if a rank has left, or has not come for too long."""
        self.absent -= marks.keys()
        unlisted = self._ranks - self.absent - marks.keys()
        gone = unlisted & self._missed
        if gone:
            raise CommitFailed(
                f"rank {min(gone)} has left before {self._target} was complete; its own error "
                "says why"
            )
        # A mark that is being renamed may be missing from one list.
        self._missed = set(unlisted)
        self._check_processes()
        if self.absent and now_s - self._waiting_since_s > ABSENT_S:
            raise CommitFailed(
                f"rank {min(self.absent)} has not begun to save {self._target} in "
                f"{ABSENT_S:.0f} seconds; every rank must call save for the same path"
            )

    def _check_processes(self) -> None:
        """Raise CommitFailed if the process of a rank has ended before it came."""
        # A rank may have come, and its process may have ended, since the marks were listed.
        if ended := self._ended & self.absent:
            raise CommitFailed(
                f"the process of rank {min(ended)} ended before it began to save {self._target}; "
                "restart the job"
            )
        for rank in self.absent:
            process = self._processes.get(rank)
            if process is not None and process.has_ended():
                self._ended.add(rank)

    def _check_alive(self, mark: Mark) -> None:
        """Raise CommitFailed if the rank that made a mark is dead."""
        if self._meeting.is_orphan(mark):
            raise CommitFailed(
                f"the process of rank {mark.rank} ended before {self._target} was complete; "
                "restart the job"
            )
        if self._is_silent(mark):
            raise CommitFailed(
                f"rank {mark.rank} has given no sign of life in {SILENT_S:.0f} seconds, so that "
                f"{self._target} is incomplete; check that its host still runs"
            )

    def _is_silent(self, mark: Mark) -> bool:
        """Return whether a mark has not changed for too long, by this host's clock alone."""
        sign_ns = self._meeting.last_sign_ns(mark)
        if sign_ns is None:
            return False
        now_s = time.monotonic()
        known_ns, since_s = self._signs.get(mark.rank, (None, now_s))
        if sign_ns != known_ns:
            self._signs[mark.rank] = (sign_ns, now_s)
            return False
        return now_s - since_s > SILENT_S
