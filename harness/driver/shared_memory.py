"""A run's own folder in the machine's shared memory.

A killed process leaves its files there, and none of them may outlive the run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

DEVICE = Path("/dev/shm")


def folder_of(run: Path) -> Path:
    """Return the folder in shared memory of the run in the folder `run`."""
    return DEVICE / f"ckptbench-{run.name}-{digest_of(run)}"


def digest_of(run: Path) -> str:
    """Return 8 hex digits of a run's path.

    Two runs that begin in the same second, of two users for example, have the same name.
    """
    return hashlib.blake2b(os.fsencode(run.resolve()), digest_size=4).hexdigest()


class SharedMemory:
    """The run's files in shared memory: those of ranks that meet, and checkpoints kept there."""

    def __init__(self, run: Path) -> None:
        """Take the run's folder, and remove the files that its killed driver left."""
        self._folder = folder_of(run)
        self.clear()

    @property
    def ranks(self) -> Path | None:
        """Make a folder for the ranks of one job. Return None without shared memory."""
        return self._made("ranks")

    @property
    def levels(self) -> Path | None:
        """Make a folder for checkpoints in memory that later processes restore.

        Return None without shared memory.
        """
        return self._made("levels")

    def clear_ranks(self) -> None:
        """Remove the files that the ranks of a job left."""
        shutil.rmtree(self._folder / "ranks", ignore_errors=True)

    def clear(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _made(self, name: str) -> Path | None:
        if not DEVICE.is_dir():
            return None
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder
