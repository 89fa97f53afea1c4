"""Turning the files of several ranks into one visible checkpoint."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from adapters.deepfreeze.commit import Commit
from adapters.deepfreeze.errors import CommitFailed
from adapters.deepfreeze.layout import INDEX, file_name
from adapters.deepfreeze.meeting import DONE, FAILED, PUBLISHED, Mark, Meeting
from adapters.deepfreeze.processes import Process
from adapters.deepfreeze.watch import Watch

_SHARES, _TAKEN = "shares", "taken"

MakeIndex = Callable[[Mapping[str, str]], bytes]
"""Makes the index of the checkpoint from the digest of every file's header."""


class CommonCommit(Commit):
    """The commit of several ranks.

    They meet in a directory, and the directory of the shares is in there until it has its name.
    Rank 0 waits until all others have reported how their shares went, and they wait for what
    rank 0 reports then. So either all ranks raise an error or none does. A rank that cannot see
    the others meanwhile raises an error too and withdraws its share. That costs all ranks the
    checkpoint, unless rank 0 has taken the shares before::

        each rank      come -> write its share -> report "done" or "failed"
        rank 0         wait for all reports -> take the shares -> write the index
                       -> publish -> report "published"
        other ranks    wait for "published" -> leave; the last one removes the meeting
    """

    def __init__(
        self,
        target: Path,
        tag: str,
        rank: int,
        world: int,
        make_index: MakeIndex,
        processes: Sequence[Process | None] = (),
    ) -> None:
        super().__init__(target, tag)
        self._meeting = Meeting(self.folder, target, rank)
        self.folder = self._meeting.folder / _SHARES
        self._rank = rank
        self._world = world
        self._make_index = make_index
        self._watch = Watch(
            self._meeting,
            target,
            ranks=frozenset(range(1, world) if rank == 0 else (0,)),
            is_through=_has_reported if rank == 0 else _has_ended,
            processes=processes,
        )

    def begin(self) -> None:
        self._meeting.folder.mkdir(exist_ok=True)
        try:
            # A rank comes first. After that it can report that the rest has failed.
            self._meeting.come()
            super().begin()
        except FileNotFoundError:
            raise self._meeting.cleared_up() from None

    def finish(self, seal: str) -> None:
        self._meeting.report(DONE + seal)
        if self._rank == 0:
            self._watch.wait_until(self._all_have_reported)
            self._publish_all()
            self._meeting.report(PUBLISHED)
        else:
            self._watch.wait_until(self._has_published)
        # The lock is released before the mark is removed, because some file systems keep an open
        # file under another name.
        self._meeting.unlock()
        if self._rank == 0:
            # On such file systems the last of the other ranks could not remove the directory.
            with contextlib.suppress(OSError):
                self._meeting.folder.rmdir()
        else:
            self._meeting.leave()

    def abandon(self) -> None:
        # Errors in here are suppressed, because the one that led here is the one to report.
        try:
            with contextlib.suppress(OSError):
                self._meeting.fail()
            with contextlib.suppress(OSError):
                (self.folder / file_name(self._rank, self._world)).unlink()
            if self._rank == 0:
                with contextlib.suppress(OSError):
                    self._watch.wait_until(self._all_have_reported)
        finally:
            self._meeting.unlock()
        if self._rank == 0:
            self._meeting.clear_up(self._world)

    def _all_have_reported(self) -> bool:
        """Return whether all ranks except 0 have ended their shares. Rank 0 asks that."""
        marks = self._meeting.marks()
        return all(rank in marks and marks[rank].has_reported for rank in range(1, self._world))

    def _has_published(self) -> bool:
        """Return whether rank 0 has published the checkpoint. The other ranks ask that.

        Raise CommitFailed if there will be no checkpoint.
        """
        marks = self._meeting.marks()
        first = marks.get(0)
        # Rank 0 removes the marks. A file system may still show the directory.
        is_cleared_up = self._rank not in marks
        if is_cleared_up or (first is not None and first.state == FAILED):
            raise self._meeting.cleared_up()
        return first is not None and first.state == PUBLISHED

    def _publish_all(self) -> None:
        """Write the index and publish the checkpoint, if all shares are durable."""
        marks = self._meeting.marks()
        for rank in range(self._world):
            if rank not in marks or not marks[rank].is_done:
                raise CommitFailed(
                    f"rank {rank} could not write its share of {self.target}, so that there is no "
                    "checkpoint; that rank's own error says why"
                )
        self._take_shares()
        seals = {
            file_name(rank, self._world): mark.state.removeprefix(DONE)
            for rank, mark in sorted(marks.items())
        }
        with (self.folder / INDEX).open("wb") as file:
            file.write(self._make_index(seals))
            file.flush()
            os.fsync(file.fileno())
        self._publish()

    def _take_shares(self) -> None:
        """Move the shares to a directory from which their ranks cannot withdraw them any more.

        Raise CommitFailed if a rank has withdrawn its share before.
        """
        taken = self._meeting.folder / _TAKEN
        self.folder.rename(taken)
        self.folder = taken
        for rank in range(self._world):
            if not (taken / file_name(rank, self._world)).exists():
                raise CommitFailed(
                    f"rank {rank} has withdrawn its share of {self.target}, so that there is no "
                    "checkpoint; that rank's own error says why"
                )


def _has_reported(mark: Mark) -> bool:
    return mark.has_reported


def _has_ended(mark: Mark) -> bool:
    return mark.has_ended
