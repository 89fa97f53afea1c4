"""How all ranks' files become one checkpoint: in a directory beside the target, which takes its name when all are durable.

Ranks of several hosts meet through that directory alone, so that a background thread needs no
communicator of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from adapters.deepfreeze.layout import INDEX, file_name
from adapters.shared.directio import sync_directory

PARTIAL_SUFFIX = ".partial"
ABSENT_S = 600.0  # how long a rank that waits for others does so for one that has not begun to save
BEAT_S = 5.0  # between two signs of life
# without one a rank is dead: where nobody can see its process, and whoever still holds its lock
SILENT_S = 120.0
_POLL_S = 0.001
_LOOK_S = 0.5  # between two looks whether the others still live
_NO_HOST = ""
_HOST = os.uname().nodename.replace(".", "-")  # locks may hold on one host only
_SHARES, _TAKEN = "shares", "taken"
_WRITING, _DONE, _PUBLISHED, _FAILED = "writing", "done-", "published", "failed"

Index = Callable[[Mapping[str, str]], bytes]


class CommitFailed(OSError):
    """Another rank could not write its share, so there is no checkpoint."""


class Commit:
    """The commit of a world of one rank."""

    def __init__(self, target: Path, tag: str) -> None:
        """Take the checkpoint's path, and what tells this save from all others, the same on every rank."""
        self.target = target
        self.folder = partial_path(target, tag)

    def begin(self) -> None:
        """Make the directory to write into.

        FileExistsError where the checkpoint is there already.
        """
        if self.target.exists():
            raise FileExistsError(f"{self.target} exists")
        self.folder.mkdir(exist_ok=True)

    def finish(self, seal: str) -> None:
        """Add this rank's file, which is durable and whose header has the digest `seal`; return when the checkpoint is visible."""
        self._publish()

    def abandon(self) -> None:
        """Give up after an error."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _publish(self) -> None:
        sync_directory(self.folder)
        self.folder.rename(self.target)
        sync_directory(self.target.parent)


class Mark(NamedTuple):
    """What a rank says of a save: the name of an empty file, which the rank keeps locked until the save has ended for it."""

    rank: int
    host: str
    state: str

    @property
    def file(self) -> str:
        """The file's name."""
        return f"rank-{self.rank}.{self.host}.{self.state}"

    @property
    def has_said(self) -> bool:
        """Whether the rank is through with its share, well or not."""
        return self.state != _WRITING

    @property
    def has_ended(self) -> bool:
        """Whether the save has ended for the rank, so that its lock no longer counts."""
        return self.state in (_PUBLISHED, _FAILED)


class CommonCommit(Commit):
    """The commit of several ranks.

    They meet in a directory of their own, and in it is that of the shares until it has its name.

    Rank 0 waits until all others have said how their shares went, and they wait for what rank 0
    then says: all or none raise. A rank that loses sight of the others meanwhile raises too and
    withdraws its share, which costs all of them the checkpoint, unless rank 0 has taken the shares
    by then.
    """

    def __init__(self, target: Path, tag: str, rank: int, world: int, index: Index) -> None:
        """`index` makes the index of the checkpoint out of all files' seals."""
        super().__init__(target, tag)
        self._meeting = self.folder
        self.folder = self._meeting / _SHARES
        self._rank = rank
        self._world = world
        self._index = index
        self._mark = Mark(rank, _HOST, _WRITING)
        self._lock: int | None = None
        self._heart = threading.Thread(target=self._beat, name="deepfreeze-heart", daemon=True)
        self._gone = threading.Event()
        # of the other ranks: the last one, and when this rank has first seen it
        self._signs: dict[int, tuple[int, float]] = {}
        self._looked_s = 0.0
        self._missed: set[int] = set()  # came, and were not there at the last look
        # of those that this rank waits for
        self._absent = set(range(1, world) if rank == 0 else (0,))
        self._waiting_since = 0.0

    def begin(self) -> None:
        self._meeting.mkdir(exist_ok=True)
        try:
            self._come()  # first: who is there can say that the rest has failed
            super().begin()
        except FileNotFoundError:
            raise self._cleared_up() from None

    def finish(self, seal: str) -> None:
        self._say(_DONE + seal)
        if self._rank == 0:
            self._wait_until(self._all_have_said)
            self._publish_all()
            self._say(_PUBLISHED)
        else:
            self._wait_until(self._has_published)
        # before the mark goes: some file systems keep an open file under another name
        self._unlock()
        if self._rank != 0:
            self._leave()
        else:
            # there, the last of the others has had to leave the directory
            with contextlib.suppress(OSError):
                self._meeting.rmdir()

    def abandon(self) -> None:
        try:
            with contextlib.suppress(OSError):  # the error that brought us here is the one to tell
                self._say(_FAILED)
            with contextlib.suppress(OSError):
                (self.folder / file_name(self._rank, self._world)).unlink()
            if self._rank == 0:
                with contextlib.suppress(OSError):
                    self._wait_until(self._all_have_said)
        finally:
            self._unlock()
        if self._rank == 0:
            self._clear_up()

    def _publish_all(self) -> None:
        marks = self._marks()
        failed = [
            rank
            for rank in range(self._world)
            if rank not in marks or not marks[rank].state.startswith(_DONE)
        ]
        if failed:
            raise CommitFailed(f"rank {failed[0]} could not write its share of {self.target}")
        self._take_shares()
        seals = {
            file_name(rank, self._world): mark.state.removeprefix(_DONE)
            for rank, mark in sorted(marks.items())
        }
        with (self.folder / INDEX).open("wb") as file:
            file.write(self._index(seals))
            file.flush()
            os.fsync(file.fileno())
        self._publish()

    def _take_shares(self) -> None:
        """Move the shares to where their ranks cannot withdraw them any more; CommitFailed where one has done so before."""
        taken = self._meeting / _TAKEN
        self.folder.rename(taken)
        self.folder = taken
        for rank in range(self._world):
            if not (taken / file_name(rank, self._world)).exists():
                raise CommitFailed(f"rank {rank} has withdrawn its share of {self.target}")

    def _come(self) -> None:
        unseen = self._meeting / f"coming-{self._rank}"
        self._lock = os.open(unseen, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a file system without locks: nobody is to take a free one for a death
            self._mark = self._mark._replace(host=_NO_HOST)
        unseen.rename(self._meeting / self._mark.file)
        self._heart.start()

    def _beat(self) -> None:
        """Give signs of life until the save has ended for this rank."""
        while not self._gone.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(self._meeting / self._mark.file)

    def _say(self, state: str) -> None:
        said = self._mark._replace(state=state)
        try:
            (self._meeting / self._mark.file).rename(self._meeting / said.file)
        except FileNotFoundError:
            raise self._cleared_up() from None
        self._mark = said

    def _cleared_up(self) -> CommitFailed:
        """Return what to raise where rank 0 has removed the meeting: it has failed."""
        return CommitFailed(f"another rank could not write its share of {self.target}")

    def _leave(self) -> None:
        """Go, once the checkpoint is there; the last one clears up."""
        with contextlib.suppress(OSError):  # what is left over is in nobody's way
            (self._meeting / self._mark.file).unlink()
            if self._marks().keys() == {0}:
                shutil.rmtree(self._meeting)

    def _clear_up(self) -> None:
        """Remove the meeting, while each other rank may rename its mark once more, behind the back of the removal."""
        for _ in range(self._world):
            shutil.rmtree(self._meeting, ignore_errors=True)
            if not self._meeting.exists():
                return

    def _marks(self) -> dict[int, Mark]:
        """Return what the ranks that have come say.

        CommitFailed where rank 0 has cleared up already.
        """
        try:
            names = os.listdir(self._meeting)
        except FileNotFoundError:
            raise self._cleared_up() from None
        parts = (
            name.removeprefix("rank-").split(".") for name in names if name.startswith("rank-")
        )
        return {int(rank): Mark(int(rank), host, state) for rank, host, state in parts}

    def _all_have_said(self) -> bool:
        """Whether all ranks but 0 have, for rank 0."""
        marks = self._marks()
        return all(rank in marks and marks[rank].has_said for rank in range(1, self._world))

    def _has_published(self) -> bool:
        """Whether rank 0 has. CommitFailed when it says that there will be no checkpoint."""
        marks = self._marks()
        first = marks.get(0)
        is_cleared = self._rank not in marks  # all but the directory, which a file system may keep
        if is_cleared or (first is not None and first.state == _FAILED):
            raise self._cleared_up()
        return first is not None and first.state == _PUBLISHED

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        """Return when it has; CommitFailed when a rank has died on the way, or has not come in ABSENT_S."""
        # also where `abandon` waits once more
        self._waiting_since = self._waiting_since or time.monotonic()
        look_s = time.monotonic() + _LOOK_S
        while not reached():
            if time.monotonic() > look_s:
                self._check_others()
                look_s = time.monotonic() + _LOOK_S
            time.sleep(_POLL_S)

    def _check_others(self) -> None:
        """Look at those this rank waits for: rank 0 at all that have not said how it went, the others at rank 0 until the end."""
        marks = self._marks()
        now_s = time.monotonic()
        if now_s - self._looked_s > SILENT_S / 2:
            self._signs.clear()  # it is this rank that has stood still
        self._looked_s = now_s
        self._absent -= marks.keys()
        left = set(range(1, self._world) if self._rank == 0 else (0,)) - self._absent - marks.keys()
        if left & self._missed:
            raise CommitFailed(f"rank {min(left)} has left before {self.target} was complete")
        self._missed = left  # a mark that is being renamed may not be listed, once
        if self._absent and now_s - self._waiting_since > ABSENT_S:
            raise CommitFailed(
                f"rank {min(self._absent)} has not begun to save {self.target} in {ABSENT_S:.0f} seconds"
            )
        for rank, mark in marks.items():
            is_awaited = not mark.has_said if self._rank == 0 else rank == 0 and not mark.has_ended
            if is_awaited and rank != self._rank and self._is_orphan(mark):
                raise CommitFailed(f"rank {rank} ended before {self.target} was complete")
            if is_awaited and rank != self._rank and self._is_silent(mark):
                raise CommitFailed(
                    f"rank {rank} has given no sign of life in {SILENT_S:.0f} seconds: {self.target} is incomplete"
                )

    def _is_orphan(self, mark: Mark) -> bool:
        """Whether the process that made the mark, and held its lock, has ended."""
        if mark.host != _HOST:
            return False
        path = self._meeting / mark.file
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:  # it has said something else meanwhile
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return path.exists()
        finally:
            os.close(descriptor)

    def _is_silent(self, mark: Mark) -> bool:
        """Whether a rank's mark has not changed for too long, by this host's clock alone."""
        try:
            sign = (self._meeting / mark.file).stat().st_mtime_ns
        except FileNotFoundError:  # it has said something else meanwhile
            return False
        now_s = time.monotonic()
        known, since_s = self._signs.get(mark.rank, (None, now_s))
        if sign != known:
            self._signs[mark.rank] = sign, now_s
        return sign == known and now_s - since_s > SILENT_S

    def _unlock(self) -> None:
        self._gone.set()
        if self._heart.is_alive():
            self._heart.join()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def partial_path(target: Path, tag: str) -> Path:
    """Where a checkpoint is written before it has its name."""
    return target.parent / f".{target.name}.{tag}{PARTIAL_SUFFIX}"


def remove_partial(parent: Path, but: str) -> None:
    """Remove what killed processes have left: everything but what is of the session `but`.

    No other job may be saving there.
    """
    for folder in parent.glob(f".*{PARTIAL_SUFFIX}"):
        if f".{but}-" not in folder.name:
            shutil.rmtree(folder)
