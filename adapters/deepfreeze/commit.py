"""How all ranks' files become one checkpoint: in a directory beside the target, which takes its name when all are durable.

Ranks of several hosts meet through that directory alone, so that a background thread needs no communicator of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from adapters.deepfreeze.layout import INDEX, file_name
from adapters.directio import sync_directory

PARTIAL_SUFFIX = ".partial"
_POLL_S = 0.001
_LIVENESS_POLLS = 500  # between two looks whether the others still live
_WRITING = f"writing-{os.uname().nodename.replace('.', '-')}"  # locks may hold on one host only
_DONE = "done-"

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
        """Make the directory to write into. FileExistsError where the checkpoint is there already."""
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


class CommonCommit(Commit):
    """The commit of several ranks. Each says how far it is by the name of an empty file, which it keeps locked while it lives."""

    def __init__(self, target: Path, tag: str, rank: int, world: int, index: Index) -> None:
        """`index` makes the index of the checkpoint out of all files' seals."""
        super().__init__(target, tag)
        self._rank = rank
        self._world = world
        self._index = index
        self._mark = self.folder / f"rank-{rank}.{_WRITING}"
        self._lock: int | None = None

    def begin(self) -> None:
        super().begin()
        starting = self._mark.with_suffix(".starting")
        self._lock = os.open(starting, os.O_CREAT | os.O_RDWR, 0o644)
        with contextlib.suppress(OSError):  # a file system without locks: then the launcher has to notice a rank's death
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        starting.rename(self._mark)

    def finish(self, seal: str) -> None:
        self._say(_DONE + seal)
        if self._rank == 0:
            self._wait_until(self._all_have_said)
            self._publish_all()
        else:
            self._wait_until(lambda: not self.folder.exists())
            if not self.target.exists():
                raise CommitFailed(f"another rank could not write its share of {self.target}")
        self._unlock()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # the error that brought us here is the one to tell
            self._say("failed")
            if self._rank == 0:
                self._wait_until(self._all_have_said)
        if self._rank == 0:
            super().abandon()
        self._unlock()

    def _publish_all(self) -> None:
        marks = self._marks()
        failed = [rank for rank, mark in sorted(marks.items()) if _DONE not in mark.name]
        if failed:
            raise CommitFailed(f"rank {failed[0]} could not write its share of {self.target}")
        seals = {file_name(rank, self._world): mark.name.rpartition("-")[2] for rank, mark in sorted(marks.items())}
        for mark in marks.values():  # first, for one journal entry to take them along with the index
            mark.unlink()
        with (self.folder / INDEX).open("wb") as file:
            file.write(self._index(seals))
            file.flush()
            os.fsync(file.fileno())
        self._publish()

    def _say(self, state: str) -> None:
        self._mark = self._mark.rename(self._mark.with_suffix(f".{state}"))

    def _marks(self) -> dict[int, Path]:
        return {int(path.stem.partition("-")[2]): path for path in self.folder.glob("rank-*")}

    def _all_have_said(self) -> bool:
        marks = self._marks().values()
        return len(marks) == self._world and all(mark.suffix not in (".starting", f".{_WRITING}") for mark in marks)

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        """Return when it has; CommitFailed when a rank of this host has died on the way."""
        polls = 0
        while not reached():
            polls += 1
            if polls % _LIVENESS_POLLS == 0:
                self._check_alive()
            time.sleep(_POLL_S)

    def _check_alive(self) -> None:
        for rank, mark in self._marks().items():
            if rank != self._rank and mark.suffix == f".{_WRITING}" and _is_orphan(mark):
                raise CommitFailed(f"rank {rank} ended before it had written its share of {self.target}")

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def partial_path(target: Path, tag: str) -> Path:
    """Where a checkpoint is written before it has its name."""
    return target.parent / f".{target.name}.{tag}{PARTIAL_SUFFIX}"


def remove_partial(parent: Path, but: str) -> None:
    """Remove what killed processes have left: everything but what is of the session `but`. No other job may be saving there."""
    for folder in parent.glob(f".*{PARTIAL_SUFFIX}"):
        if f".{but}-" not in folder.name:
            shutil.rmtree(folder)


def _is_orphan(path: Path) -> bool:
    """Whether the process that made the file, and held its lock, has ended."""
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
