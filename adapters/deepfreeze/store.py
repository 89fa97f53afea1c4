"""Levels and retention above a method.

A store restores the newest complete checkpoint, in memory or in a directory, and keeps the last
few.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

from adapters.base import NothingToRestore, Pending
from adapters.deepfreeze.commit import partial_path, remove_partial
from adapters.deepfreeze.errors import Damaged, Unfitting
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.save import Save
from adapters.deepfreeze.stored import open_stored
from adapters.shared.directio import make_directories, sync_directory

StateT = TypeVar("StateT")
Level = Literal["memory", "directory"]

HOME_FILE = ".deepfreeze-store"
# A restore goes on to an older checkpoint after these errors.
_SKIPPABLE = (Damaged, Unfitting, OSError)
_NAME = re.compile(r"step-(?P<step>\d+)(\.(?P<attempt>\d+))?")


@dataclass(frozen=True)
class Restored:
    """The checkpoint that a restore took. `skipped` says what was wrong with newer ones."""

    level: Level
    step: int
    path: Path
    skipped: tuple[str, ...]


class _Candidate(NamedTuple):
    """A checkpoint that a restore may take."""

    level: Level
    step: int
    path: Path


class Store(Generic[StateT]):
    """Saves into one directory under the name of the step, and restores the newest checkpoint.

    The level in memory is the method's arena, if that is shared memory (its option `memory`). It
    outlives the process, but not the machine. It counts only while no snapshot is being taken into
    it, and only for the directory that its checkpoint was meant for. On several hosts it never
    counts, because no memory holds the files of all ranks. To go back to an older checkpoint,
    remove the newer ones and the folder in memory too, because that holds the newest.
    """

    def __init__(self, method: DeepFreezeMethod[StateT], directory: Path, keep: int = 2) -> None:
        """Take an open method, and the number of checkpoints to keep.

        Remove what a killed process has left unfinished in the directory.
        """
        if keep < 1:
            raise ValueError(f"a store must keep at least one checkpoint, but keep is {keep}")
        self._method = method
        self._directory = directory
        self._keep = keep
        self._last: _StoredSave[StateT] | None = None
        # checkpoints that a restore has skipped, so they do not count as kept
        self._damaged: set[Path] = set()
        # others that it could not read, but that may be good, so they are not removed either
        self._unread: set[Path] = set()
        # the error of removing old checkpoints, until a caller is told
        self._prune_error: Exception | None = None
        method.engine.home = method.peers.of_first(self._begin)

    def save(self, state: StateT, step: int | None = None) -> Pending:
        """Start to save. If the save before failed and nobody was told, raise its error here.

        `step` is the number of the checkpoint. By default, it is the number of steps taken.
        In a world of several ranks, the rank that raises has started this save nevertheless,
        because the others rely on it. It must not repeat the save.
        """
        self._method.engine.join()
        if self._last is not None:
            self._last.join()
        try:
            step = self._method.step(state) if step is None else step
            path = self._fresh_path(step)
        except Exception:
            self._method.engine.skip()
            raise
        self._last = _StoredSave(self, path, self._method.save(state, path, step))
        return self._last

    def close(self) -> None:
        """Wait until nothing is in flight, and close the method.

        Raise the error of the last save, or of removing old checkpoints, if nobody was told.
        """
        if self._last is not None:
            self._last.join()
            # It refers to this store, and this cycle would hold the memory of the method.
            self._last = None
        self._method.close()
        self.raise_prune_error()

    def restore(self, state: StateT) -> Restored:
        """Load the newest checkpoint that is complete on every rank.

        Raise NothingToRestore if there is no checkpoint, and FileNotFoundError if none is complete.
        """
        peers = self._method.peers
        candidates, skipped = peers.of_first(self._newest_first)
        for level, step, path in candidates:
            error = self._load(state, path)
            if peers.on_all(error is None):
                return Restored(level, step, path, tuple(skipped))
            is_skippable = error is None or isinstance(error, _SKIPPABLE)
            if not peers.on_all(is_skippable):
                raise error or RuntimeError(
                    f"another rank could not load {path}; that rank's own error says why"
                )
            is_damaged = not peers.on_all(not isinstance(error, Damaged))
            (self._damaged if is_damaged else self._unread).add(path)
            skipped.append(str(error or f"{path} is not complete on another rank"))
        if not skipped:
            raise NothingToRestore(f"no checkpoint in {self._directory}")
        raise FileNotFoundError("; ".join([f"no checkpoint in {self._directory}", *skipped]))

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of the directory, the oldest first."""
        paths = [path for path in self._directory.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(paths, key=_age)

    def prune(self, newest: Path) -> None:
        """Remove what is older than a checkpoint that is durable now, except the last few.

        A checkpoint that a restore found to be damaged is not one of those. An error is kept for
        `raise_prune_error`, because it costs no checkpoint and rank 0 alone knows of it.
        """
        if self._method.place.rank != 0:
            return
        try:
            self._remove_before(newest)
        except OSError as error:
            self._prune_error = error

    def raise_prune_error(self) -> None:
        """Raise the error of removing old checkpoints, once."""
        error = self._prune_error
        self._prune_error = None
        if error is not None:
            raise error

    def _load(self, state: StateT, path: Path) -> Exception | None:
        """Load, and return the error, because the other ranks must know of it first."""
        try:
            self._method.load(state, path)
        except Exception as error:
            return error
        return None

    def _remove_before(self, newest: Path) -> None:
        """Remove old checkpoints. Each loses its name first, so that none is visible in part."""
        # A checkpoint of a later step is of another training.
        until_newest = [path for path in self.checkpoints() if _age(path) <= _age(newest)]
        complete = [path for path in until_newest if path not in self._damaged | self._unread]
        last_few = complete[-self._keep :]
        for path in until_newest:
            if path not in last_few and path not in self._unread:
                removed = partial_path(path, "removed")
                path.rename(removed)
                shutil.rmtree(removed)

    def _newest_first(self) -> tuple[list[_Candidate], list[str]]:
        """Return the checkpoints to try, and what is wrong with a memory that holds none of them.

        Of the same step, the one in memory comes first.
        """
        candidates = [
            _Candidate("directory", _age(path)[0], path) for path in reversed(self.checkpoints())
        ]
        skipped: list[str] = []
        for path in self._method.memory_folders():
            try:
                candidates.append(_Candidate("memory", self._step_in_memory(path), path))
            except FileNotFoundError:
                # Nothing was ever saved there.
                continue
            except (Damaged, OSError) as error:
                # Usually, a snapshot was being taken.
                skipped.append(str(error))
        candidates.sort(key=lambda candidate: (-candidate.step, candidate.level != "memory"))
        return candidates, skipped

    def _step_in_memory(self, folder: Path) -> int:
        """Return the step of the checkpoint in an arena.

        Raise Damaged if it is not complete, or was meant for another directory.
        """
        stored = open_stored(folder, is_arena=True)
        if stored.origin is None or stored.origin.home != self._method.engine.home:
            raise Damaged(
                f"{folder} holds a checkpoint of another directory than {self._directory}; remove "
                "it if that directory does not need it"
            )
        return stored.step

    def _begin(self) -> str:
        """Make the directory, remove what is unfinished there, and return its name in memory."""
        make_directories(self._directory)
        remove_partial(self._directory, but=self._method.engine.session)
        return self._home() if self._method.memory_folders() else ""

    def _home(self) -> str:
        """Return the name that marks this directory's checkpoints in memory.

        No other directory has it, not even one that takes the path of this one later.
        """
        file = self._directory / HOME_FILE
        # After a power loss the file may be empty.
        if not file.exists() or not file.read_text():
            unfinished = file.with_suffix(".tmp")
            with unfinished.open("w") as content:
                content.write(secrets.token_hex(8))
                content.flush()
                os.fsync(content.fileno())
            unfinished.rename(file)
            sync_directory(self._directory)
        return file.read_text()

    def _fresh_path(self, step: int) -> Path:
        """Return the path for a step's checkpoint.

        If a damaged checkpoint has the name of the step, a number is added, because the damaged
        one stays until a newer one is durable.
        """
        name = f"step-{step:010d}"
        attempts = [_age(path)[1] for path in self.checkpoints() if _age(path)[0] == step]
        return self._directory / (f"{name}.{max(attempts) + 1}" if attempts else name)


class _StoredSave(Pending, Generic[StateT]):
    """A save that prunes the store once it is durable."""

    def __init__(self, store: Store[StateT], path: Path, save: Save) -> None:
        self._store = store
        self._path = path
        self._save = save
        self._is_pruned = False

    def staged(self) -> None:
        self._save.staged()

    def finished(self) -> None:
        self._save.finished()
        self._prune()
        self._store.raise_prune_error()

    def join(self) -> None:
        """Wait for the end. If the save has failed, the method's next save raises the error."""
        self._save.join()
        if self._save.is_durable:
            self._prune()

    def _prune(self) -> None:
        if not self._is_pruned:
            # This is set first, so that an error is raised once.
            self._is_pruned = True
            self._store.prune(self._path)


def _age(path: Path) -> tuple[int, int]:
    """Return the step of a checkpoint and the number of its attempt, by which they are sorted."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match["step"]), int(match["attempt"] or 0)
