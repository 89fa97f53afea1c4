"""Levels and retention above a method: the newest complete checkpoint in memory or in a directory, and the last few kept."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from adapters.base import Pending
from adapters.deepfreeze.commit import partial_path, remove_partial
from adapters.deepfreeze.engine import Save
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.stored import Damaged, Unfitting, open_stored
from adapters.shared.directio import make_directories, sync_directory

StateT = TypeVar("StateT")
Level = Literal["memory", "directory"]

_NOT_WHOLE = (Damaged, Unfitting, OSError)
OWN_NAME = ".deepfreeze-store"
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

    The level in memory is the method's own arena, where that is shared memory (its option
    `memory`): it outlives the process, not the machine, and counts only while no snapshot is being
    taken into it, and for the directory that its checkpoint was meant for. On several hosts, where
    no memory holds every rank's file, it never counts. Who goes back by removing checkpoints
    removes the folder in memory too, which holds the newest.
    """

    def __init__(self, method: DeepFreezeMethod[StateT], directory: Path, keep: int = 2) -> None:
        """Take an opened method.

        What a killed process has left unfinished in the directory is removed.
        """
        if keep < 1:
            raise ValueError(f"a store keeps at least one checkpoint, not {keep}")
        self._method = method
        self._directory = directory
        self._keep = keep
        self._last: _StoredSave[StateT] | None = None
        self._skipped: set[Path] = set()  # by a restore: no checkpoint to count on
        self._untold: Exception | None = None  # what went wrong when old checkpoints were removed
        method.engine.home = method.peers.of_first(self._begin)

    def save(self, state: StateT) -> Pending:
        """Begin to save; raises what went wrong with the save before, where nobody has been told.

        Of several ranks, one that raises that has begun nevertheless, for the others count on it:
        it is not to be repeated.
        """
        self._method.engine.join()
        if self._last is not None:
            self._last.join()
        try:
            path = self._fresh_path(self._method.step(state))
        except Exception:
            self._method.engine.skip()
            raise
        self._last = _StoredSave(self, path, self._method.save(state, path))
        return self._last

    def close(self) -> None:
        """Wait for what is in flight and close the method; raise what went wrong and nobody has been told."""
        if self._last is not None:
            self._last.join()
        self._method.close()
        self.tell()

    def restore(self, state: StateT) -> Restored:
        """Load the newest checkpoint that every rank finds whole.

        FileNotFoundError where there is none.
        """
        peers = self._method.peers
        found, skipped = peers.of_first(self._newest_first)
        for level, step, path in found:
            error = self._load(state, path)
            if peers.on_all(error is None):
                return Restored(level, step, path, tuple(skipped))
            if not peers.on_all(error is None or isinstance(error, _NOT_WHOLE)):
                raise error or RuntimeError(f"another rank could not load {path}")
            self._skipped.add(path)
            skipped.append(str(error or f"{path} is not whole on another rank"))
        raise FileNotFoundError("; ".join([f"no checkpoint in {self._directory}", *skipped]))

    def _load(self, state: StateT, path: Path) -> Exception | None:
        """Load, and return what went wrong: whatever that is, the other ranks are to know first."""
        try:
            self._method.load(state, path)
        except Exception as error:
            return error
        return None

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of the directory, the oldest first."""
        return sorted(
            (path for path in self._directory.iterdir() if _NAME.fullmatch(path.name)), key=_age
        )

    def prune(self, newest: Path) -> None:
        """Remove what is older than a checkpoint that is durable now, but for the last ones.

        What a restore skipped does not count.

        What goes wrong is told by `tell`: it costs no checkpoint, and rank 0 alone knows of it.
        """
        if self._method.place.rank != 0:
            return
        try:
            self._remove_before(newest)
        except OSError as error:
            self._untold = error

    def tell(self) -> None:
        """Raise what went wrong when old checkpoints were removed, once."""
        error, self._untold = self._untold, None
        if error is not None:
            raise error

    def _remove_before(self, newest: Path) -> None:
        """Remove old checkpoints. Each loses its name first: no half of it is ever seen."""
        # one of a later step is of another training
        upto = [path for path in self.checkpoints() if _age(path) <= _age(newest)]
        kept = [path for path in upto if path not in self._skipped][-self._keep :]
        for path in upto:
            if path not in kept:
                doomed = partial_path(path, "removed")
                path.rename(doomed)
                shutil.rmtree(doomed)

    def _newest_first(self) -> tuple[list[tuple[Level, int, Path]], list[str]]:
        """Return what there is to restore, and what is wrong with a memory whose step cannot be told."""
        found: list[tuple[Level, int, Path]] = [
            ("directory", _age(path)[0], path) for path in reversed(self.checkpoints())
        ]
        skipped: list[str] = []
        for path in self._method.memory_folders():
            try:
                stored = open_stored(path, is_arena=True)
                if stored.origin is None or stored.origin.home != self._method.engine.home:
                    raise Damaged(
                        f"{path} holds a checkpoint of another directory than {self._directory}"
                    )
                found.append(("memory", stored.step, path))
            except FileNotFoundError:  # nothing was ever saved there
                continue
            except (Damaged, OSError) as error:  # as a rule, a snapshot was being taken
                skipped.append(str(error))
        return sorted(found, key=lambda entry: (-entry[1], entry[0] != "memory")), skipped

    def _begin(self) -> str:
        """Have the directory, without what is unfinished there, and return its name in memory."""
        make_directories(self._directory)
        remove_partial(self._directory, but=self._method.engine.session)
        return self._own_name() if self._method.memory_folders() else ""

    def _own_name(self) -> str:
        """What this directory, and no other before or after it in its place, is called in memory."""
        file = self._directory / OWN_NAME
        if not file.exists() or not file.read_text():  # empty where the power was lost
            unfinished = file.with_suffix(".tmp")
            with unfinished.open("w") as content:
                content.write(secrets.token_hex(8))
                content.flush()
                os.fsync(content.fileno())
            unfinished.rename(file)
            sync_directory(self._directory)
        return file.read_text()

    def _fresh_path(self, step: int) -> Path:
        """The step's own name, unless a damaged checkpoint has it, which stays until a newer one is durable."""
        taken = [_age(path)[1] for path in self.checkpoints() if _age(path)[0] == step]
        return self._directory / (
            f"step-{step:010d}.{max(taken) + 1}" if taken else f"step-{step:010d}"
        )


class _StoredSave(Pending, Generic[StateT]):
    """A save that prunes the store once it is durable."""

    def __init__(self, store: Store[StateT], path: Path, save: Save) -> None:
        self._store = store
        self._path = path
        self._save = save
        self._pruned = False

    def staged(self) -> None:
        self._save.staged()

    def finished(self) -> None:
        self._save.finished()
        self._prune()
        self._store.tell()

    def join(self) -> None:
        """Wait for the end, whatever that is: the method's next save tells what went wrong."""
        self._save.join()
        if self._save.is_durable:
            self._prune()

    def _prune(self) -> None:
        if not self._pruned:
            self._pruned = True  # first: what goes wrong with it is told once
            self._store.prune(self._path)


def _age(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match["step"]), int(match["again"] or 0)
