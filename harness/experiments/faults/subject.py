"""The method or store of a case, which saves two checkpoints and resumes from the newest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from adapters.base import Method, NothingToRestore, Pending, Store
from harness.experiments.faults.states import newest_of
from harness.wire.case import Case
from harness.worker.bench import Bench


class Subject(ABC):
    """A method or a store, opened for one folder of checkpoints."""

    @abstractmethod
    def save(self, state: Any, path: Path) -> Pending:
        """Save the checkpoint of a name in the folder. A store gives it a name of its own."""

    @abstractmethod
    def resume(self, state: Any) -> str:
        """Restore the newest checkpoint that is visible, and return its name.

        Raises NothingToRestore if there is none, and any other error if it is refused.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back the resources that opening made."""


def open_subject(bench: Bench, case: Case, folder: Path) -> Subject:
    """Open the method or store of a case on the state, for the checkpoints in a folder."""
    made = bench.make(case)
    if isinstance(made, Store):
        made.open(bench.state, folder)
        return _StoreSubject(made)
    made.open(bench.state)
    return _MethodSubject(made, folder)


class _MethodSubject(Subject):
    """A method, whose checkpoints a script names and finds."""

    def __init__(self, method: Method[Any], folder: Path) -> None:
        self._method = method
        self._folder = folder

    def save(self, state: Any, path: Path) -> Pending:
        return self._method.save(state, path)

    def resume(self, state: Any) -> str:
        newest = newest_of(path.name for path in self._folder.iterdir())
        if newest is None:
            raise NothingToRestore("no checkpoint is visible")
        self._method.load(state, self._folder / newest)
        return newest

    def close(self) -> None:
        self._method.close()


class _StoreSubject(Subject):
    """A store, which names and finds its checkpoints by itself."""

    def __init__(self, store: Store[Any]) -> None:
        self._store = store

    def save(self, state: Any, path: Path) -> Pending:
        return self._store.save(state, _step(path.name))

    def resume(self, state: Any) -> str:
        return f"step-{self._store.restore_latest(state)}"

    def close(self) -> None:
        self._store.close()


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))
