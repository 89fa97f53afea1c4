"""Saves of several ranks that go wrong only where one of the ranks is killed."""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from adapters.base import Pending
from adapters.raw.doubles import Fault
from adapters.raw.framework import State
from adapters.shared.directio import sync_directory

_LOOK_S = 0.005


class Meets(Fault):
    """Publish a checkpoint once every rank has written its file. Nothing goes wrong.

    A rank that waits too long for the others raises an error.
    """

    name = "meets"
    # longer than the others need on a busy machine
    patience_s: ClassVar[float] = 6.0

    def save(self, state: State, path: Path) -> Pending:
        unfinished = path.with_name(f"{path.name}.tmp")
        unfinished.mkdir(exist_ok=True)
        state.to_host()
        rank = self.place.rank
        part = self.file(unfinished, rank).with_suffix(".part")
        self.write(part, self.parts(state, rank))
        # The name says that the file is complete.
        part.rename(self.file(unfinished, rank))
        if rank == 0:
            files = [self.file(unfinished, other) for other in range(self.place.world)]
            self.wait_until(lambda: all(file.exists() for file in files))
            # The others do not, because the folder may have its final name by then.
            sync_directory(unfinished)
            self.publish(unfinished, path)
        else:
            self.wait_until(path.exists)
        return Pending()

    def publish(self, unfinished: Path, path: Path) -> None:
        """Give a complete checkpoint its name."""
        unfinished.rename(path)
        sync_directory(path.parent)

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        """Return when something is there. Raise TimeoutError where that takes too long."""
        deadline_s = time.monotonic() + self.patience_s
        while not is_there():
            if time.monotonic() > deadline_s:
                self.give_up()
            time.sleep(_LOOK_S)

    def give_up(self) -> None:
        """Raise TimeoutError."""
        raise TimeoutError("another rank does not come")


class WaitsForEver(Meets):
    """Wait for a dead rank for ever."""

    name = "waits-for-ever"
    patience_s = math.inf


class DiesWithOthers(Meets):
    """End the process where another rank does not come, as a C library may."""

    name = "dies-with-others"

    def give_up(self) -> None:
        os.kill(os.getpid(), signal.SIGABRT)


class RemovesOlderFirst(Meets):
    """Remove the older checkpoint when every rank has written, and before the newer one is there.

    The newer one is complete by then, but under a name that no script knows.
    """

    name = "removes-older-first"

    def publish(self, unfinished: Path, path: Path) -> None:
        for older in _older(path):
            shutil.rmtree(older)
        super().publish(unfinished, path)


class RemovesAllFirst(Meets):
    """Remove the older checkpoint before anything is written."""

    name = "removes-all-first"

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            for older in _older(path):
                shutil.rmtree(older)
        return super().save(state, path)


class MixesCheckpoints(Meets):
    """Give the older checkpoint the name of the newer one, then replace its files one by one."""

    name = "mixes-checkpoints"

    def publish(self, unfinished: Path, path: Path) -> None:
        older = _older(path)
        if not older:
            super().publish(unfinished, path)
            return
        older[-1].rename(path)
        for rank in range(self.place.world):
            self.file(unfinished, rank).rename(self.file(path, rank))


class DiesOfTornCheckpoint(Fault):
    """Write under the final name, and end the process where a file of it is missing or short."""

    name = "dies-of-torn-checkpoint"

    def load(self, state: State, path: Path) -> None:
        try:
            super().load(state, path)
        except (OSError, EOFError):
            os.kill(os.getpid(), signal.SIGSEGV)


def _older(path: Path) -> list[Path]:
    """Return the complete checkpoints beside a path, oldest first."""
    complete = [other for other in path.parent.glob("step-*") if not other.suffix]
    return sorted(other for other in complete if other != path)
