"""A run's own folder in the machine's shared memory: what outlives a process there must not outlive the run."""

from __future__ import annotations

import shutil
from pathlib import Path

DEVICE = Path("/dev/shm")


class SharedMemory:
    """Where ranks of one machine meet, and where checkpoints lie that are restored from memory."""

    def __init__(self, run: str) -> None:
        """Take the run's name, and remove what a driver of it that was killed has left."""
        self._folder = DEVICE / f"ckptbench-{run}"
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
