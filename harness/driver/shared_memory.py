"""A run's own folder in the machine's shared memory: what outlives a process there must not outlive the run."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

DEVICE = Path("/dev/shm")


def folder_of(run: Path) -> Path:
    """Return the folder of a run.

    Runs that begin in the same second, of two users say, have one name in different places.
    """
    place = hashlib.blake2b(str(run.resolve()).encode(), digest_size=4).hexdigest()
    return DEVICE / f"ckptbench-{run.name}-{place}"


class SharedMemory:
    """Where ranks of one machine meet, and where checkpoints lie that are restored from memory."""

    def __init__(self, run: Path) -> None:
        """Take the run's folder, and remove what a driver of it that was killed has left."""
        self._folder = folder_of(run)
        self.clear()

    @property
    def ranks(self) -> Path | None:
        """A folder for the ranks of one job; None on a machine that has no shared memory."""
        return self._made("ranks")

    @property
    def levels(self) -> Path | None:
        """A folder for checkpoints in memory, which later processes restore; None on a machine that has no shared memory."""
        return self._made("levels")

    def clear_ranks(self) -> None:
        """Remove what the ranks of a job have left."""
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
