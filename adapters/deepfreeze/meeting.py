"""The directory in which the ranks of one save tell each other how it goes.

Ranks of several hosts meet through this directory alone, so that a background thread needs no
communicator of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from pathlib import Path
from typing import NamedTuple

from adapters.deepfreeze.errors import CommitFailed

# Between two signs of life.
BEAT_S = 5.0
# The states that a mark can say. The digest of the rank's header follows DONE.
WRITING, DONE, PUBLISHED, FAILED = "writing", "done-", "published", "failed"
_NO_HOST = ""
# Locks may hold on one host only. A dot separates the parts of a mark's name.
_HOST = os.uname().nodename.replace(".", "-")


class Mark(NamedTuple):
    """The name of a rank's empty file, which says how the save goes for the rank.

    The rank keeps the file locked until the save has ended for it. `host` is empty if its file
    system has no locks.
    """

    rank: int
    host: str
    state: str

    @classmethod
    def parse(cls, name: str) -> Mark:
        """Return the mark with a file's name."""
        rank, host, state = name.removeprefix("rank-").split(".")
        return cls(int(rank), host, state)

    @property
    def file(self) -> str:
        """The file's name."""
        return f"rank-{self.rank}.{self.host}.{self.state}"

    @property
    def is_done(self) -> bool:
        """True if the rank's share is durable."""
        return self.state.startswith(DONE)

    @property
    def has_reported(self) -> bool:
        """True if the rank has ended its share, well or not."""
        return self.state != WRITING

    @property
    def has_ended(self) -> bool:
        """True if the save has ended for the rank, so that its lock no longer counts."""
        return self.state in (PUBLISHED, FAILED)


class Meeting:
    """One rank's view of the directory, and its own mark there."""

    def __init__(self, folder: Path, target: Path, rank: int) -> None:
        """Take the directory, the checkpoint's path for errors, and the rank."""
        self.folder = folder
        self._target = target
        self._mark = Mark(rank, _HOST, WRITING)
        self._lock: int | None = None
        self._heart = threading.Thread(target=self._beat, name="deepfreeze-heart", daemon=True)
        self._has_left = threading.Event()

    def come(self) -> None:
        """Make this rank's mark, lock it, and give signs of life from now on."""
        unseen = self.folder / f"coming-{self._mark.rank}"
        self._lock = os.open(unseen, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # The file system has no locks. A free lock must not be taken for a death.
            self._mark = self._mark._replace(host=_NO_HOST)
        unseen.rename(self.folder / self._mark.file)
        self._heart.start()

    def report(self, state: str) -> None:
        """Let the mark say a new state."""
        renamed = self._mark._replace(state=state)
        try:
            (self.folder / self._mark.file).rename(self.folder / renamed.file)
        except FileNotFoundError:
            raise self.cleared_up() from None
        self._mark = renamed

    def fail(self) -> None:
        """Let the others know that this rank has failed, also where it could not come.

        Raise OSError if rank 0 has cleared up already.
        """
        failed = self._mark._replace(state=FAILED)
        try:
            (self.folder / self._mark.file).rename(self.folder / failed.file)
        except FileNotFoundError:
            # A link takes no descriptor, of which the rank may have none left.
            (self.folder / failed.file).symlink_to(FAILED)
        self._mark = failed

    def marks(self) -> dict[int, Mark]:
        """Return the marks of the ranks that have come.

        Raise CommitFailed if rank 0 has cleared up already.
        """
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            raise self.cleared_up() from None
        marks = [Mark.parse(name) for name in names if name.startswith("rank-")]
        return {mark.rank: mark for mark in marks}

    def cleared_up(self) -> CommitFailed:
        """Return the error to raise when rank 0 has removed the meeting, because a rank failed."""
        return CommitFailed(
            f"another rank could not write its share of {self._target}, so that there is no "
            "checkpoint; that rank's own error says why"
        )

    def unlock(self) -> None:
        """Stop the signs of life and release the lock. Do nothing if the rank never came."""
        self._has_left.set()
        if self._heart.is_alive():
            self._heart.join()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def leave(self) -> None:
        """Remove this rank's mark once the checkpoint is there. The last rank clears up."""
        # Whatever stays does not disturb anybody.
        with contextlib.suppress(OSError):
            (self.folder / self._mark.file).unlink()
            if self.marks().keys() == {0}:
                shutil.rmtree(self.folder)

    def clear_up(self, world: int) -> None:
        """Remove the directory.

        Each other rank may still rename its mark once, during the removal, which then starts again.
        """
        for _ in range(world):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return

    def is_orphan(self, mark: Mark) -> bool:
        """Return whether the process that made a mark and held its lock has ended."""
        if mark.host != _HOST:
            return False
        path = self.folder / mark.file
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            # The rank has reported another state meanwhile.
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return path.exists()
        finally:
            os.close(descriptor)

    def last_sign_ns(self, mark: Mark) -> int | None:
        """Return the time of a mark's last sign of life, by its host's clock.

        Return None if the rank has reported another state meanwhile.
        """
        try:
            return (self.folder / mark.file).stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _beat(self) -> None:
        """Give signs of life until the save has ended for this rank."""
        while not self._has_left.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(self.folder / self._mark.file)
