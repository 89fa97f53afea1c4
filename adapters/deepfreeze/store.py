"""Levels and retention above a method: the newest complete checkpoint in memory or in a directory, and the last few kept."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from adapters.base import Pending
from adapters.deepfreeze.commit import partial_path, remove_partial
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.stored import Damaged, open_stored

StateT = TypeVar("StateT")
Level = Literal["memory", "directory"]

_NAME = re.compile(r"step-(?P<step>\d+)(\.(?P<again>\d+))?")


@dataclass(frozen=True)
class Restored:
    """Which checkpoint a restore took. `skipped` says what was wrong with newer ones."""

    level: Level
    step: int
    path: Path
    skipped: tuple[str, ...]


class Store(Generic[StateT]):
    """Saves into one directory under the name of the step, and restores the newest complete checkpoint.

    The level in memory is the method's own arena, where that is shared memory (its option `memory`): it outlives the process, not
    the machine, and counts only while no snapshot is being taken into it. On several hosts, where no memory holds every rank's
    file, it never counts.
    """

    def __init__(self, method: DeepFreezeMethod[StateT], directory: Path, keep: int = 2) -> None:
        """Take an opened method. What a killed process has left unfinished in the directory is removed."""
        if keep < 1:
            raise ValueError(f"a store keeps at least one checkpoint, not {keep}")
        self._method = method
        self._directory = directory
        self._keep = keep
        self._last: _StoredSave[StateT] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        if method.place.rank == 0:
            remove_partial(directory, but=method.engine.session)

    def save(self, state: StateT) -> Pending:
        """Begin to save; raises what went wrong with the save before, where nobody has been told."""
        if self._last is not None:
            last, self._last = self._last, None
            last.settle()
        self._last = _StoredSave(self, self._method.save(state, self._fresh_path(self._method.step(state))))
        return self._last

    def restore(self, state: StateT) -> Restored:
        """Load the newest checkpoint that every rank finds whole. FileNotFoundError where there is none."""
        peers = self._method.peers
        skipped: list[str] = []
        for level, step, path in peers.of_first(self._newest_first()):
            reason = self._load(state, path)
            if peers.on_all(reason is None):
                return Restored(level, step, path, tuple(skipped))
            skipped.append(reason or f"{path} is not whole on another rank")
        raise FileNotFoundError("; ".join([f"no checkpoint in {self._directory}", *skipped]))

    def _load(self, state: StateT, path: Path) -> str | None:
        """Load, or say why that cannot be done."""
        try:
            self._method.load(state, path)
        except (Damaged, FileNotFoundError) as error:
            return str(error)
        return None

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of the directory, the oldest first."""
        return sorted((path for path in self._directory.iterdir() if _NAME.fullmatch(path.name)), key=_age)

    def prune(self) -> None:
        """Remove all but the last checkpoints. What is removed loses its name first: no half of it is ever seen."""
        if self._method.place.rank != 0:
            return
        for path in self.checkpoints()[: -self._keep]:
            doomed = partial_path(path, "removed")
            path.rename(doomed)
            shutil.rmtree(doomed)

    def _newest_first(self) -> list[tuple[Level, int, Path]]:
        found: list[tuple[Level, int, Path]] = [("directory", _age(path)[0], path) for path in reversed(self.checkpoints())]
        for path in self._method.memory_folders():
            try:
                found.append(("memory", open_stored(path).step, path))
            except (Damaged, FileNotFoundError):  # a snapshot was being taken, or there never was one
                continue
        return sorted(found, key=lambda entry: (-entry[1], entry[0] != "memory"))

    def _fresh_path(self, step: int) -> Path:
        """The step's own name, unless a damaged checkpoint has it, which stays until a newer one is durable."""
        taken = [_age(path)[1] for path in self.checkpoints() if _age(path)[0] == step]
        return self._directory / (f"step-{step:010d}.{max(taken) + 1}" if taken else f"step-{step:010d}")


class _StoredSave(Pending, Generic[StateT]):
    """A save that prunes the store once it is durable."""

    def __init__(self, store: Store[StateT], pending: Pending) -> None:
        self._store = store
        self._pending = pending
        self._told = False

    def staged(self) -> None:
        self._pending.staged()

    def finished(self) -> None:
        self._told = True
        self._pending.finished()
        self._store.prune()

    def settle(self) -> None:
        """Finish, unless somebody has and knows what came of it."""
        if not self._told:
            self.finished()


def _age(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match["step"]), int(match["again"] or 0)
