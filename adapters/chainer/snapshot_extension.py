"""Chainer's snapshot extension, which removes old files and loads the newest by itself."""

from __future__ import annotations

from pathlib import Path

from chainer import AbstractSerializer
from chainer.training.extensions import snapshot

from adapters.base import NothingToRestore, Pending, Store
from adapters.chainer.state import State


class SnapshotExtension(Store[State]):
    """The extension as shipped, which saves what the trainer serializes.

    It takes the file with the newest time of modification for the newest snapshot.
    """

    def open(self, state: State, folder: Path) -> None:
        self._folder = folder
        self._extension = snapshot(n_retains=self.options["keep"])
        # Without `autoload`, this installs the removal of old files alone.
        self._extension.initialize(_Trainer(state, folder))

    def save(self, state: State, step: int) -> Pending:
        if self.place.rank == 0:
            self._extension(_Trainer(state, self._folder, step))
        return Pending()

    def restore_latest(self, state: State) -> int:
        trainer = _Trainer(state, self._folder)
        snapshot(autoload=True).initialize(trainer)
        if trainer.iteration == 0:
            raise NothingToRestore(f"no snapshot in {self._folder}")
        return trainer.iteration

    def close(self) -> None:
        self._extension.finalize()


class _Trainer:
    """The parts of chainer.training.Trainer that the extension uses."""

    def __init__(self, state: State, folder: Path, iteration: int = 0) -> None:
        self.out = str(folder)
        self.iteration = iteration
        self._state = state

    @property
    def updater(self) -> _Trainer:
        """The object with the number of the iteration, which is part of the file's name."""
        return self

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Give the trainer to a serializer, or set it to the values of a deserializer."""
        self.iteration = serializer("iteration", self.iteration)
        self._state.serialize(serializer["state"])
