"""tf.train.Checkpoint, with which rank 0 writes an index and a data file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from adapters.base import Entry, Method, Pending
from adapters.tensorflow import bundle, roles
from adapters.tensorflow.state import State
from workloads import Role

PREFIX = "state"  # the beginning of the names of a checkpoint's files


class Checkpoint(Method[State]):
    """Model, optimizer, dropout seeds and position, by `write` and `read`."""

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder of two files."""
        if self.place.rank == 0:
            self.objects(state).write(path / PREFIX)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read into the variables of the state. All of them must be in the files."""
        status = self.objects(state).read(path / PREFIX)
        # An asynchronous write adds TensorFlow's counter of saves, which no object here reads.
        status.assert_existing_objects_matched().expect_partial()

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the variables and their description."""
        return bundle.tensors(path, PREFIX, self.role)

    def objects(self, state: State) -> tf.train.Checkpoint:
        """Return the saved objects, as scripts list them.

        The seeds are listed, because no Keras object tracks them.
        """
        return tf.train.Checkpoint(
            model=state.model, optimizer=state.optimizer, rng=state.rng, step=state.step
        )

    def role(self, name: str) -> Role | None:
        """Return the role of a variable by its path through `objects`.

        A variable that several objects share has one of its paths. A weight has the path in the
        optimizer's list of trained variables. The learning rate is a setting, so its role is None.
        """
        match name.split("/"):
            case ["optimizer", "_trainable_variables", _]:
                return Role.WEIGHT
            case ["optimizer", kind, *_]:
                return None if kind == "_learning_rate" else Role.OPTIMIZER
            case ["model", *_]:
                return roles.of_variable(name)
            case ["rng", _]:
                return Role.RNG
            case ["step"]:
                return Role.POSITION
        return None


class CheckpointOfEach(Checkpoint):
    """A checkpoint to which every rank writes its whole state, as two files.

    So each rank gets back the values that differ from rank to rank.
    """

    def save(self, state: State, path: Path) -> Pending:
        self.objects(state).write(path / self._prefix(self.place.rank))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read this rank's files into the variables of the state."""
        self.objects(state).read(path / self._prefix(self.place.rank)).assert_consumed()

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the variables in the files of all ranks."""
        for rank in range(self.place.world):
            yield from bundle.tensors(path, self._prefix(rank), self.role)

    def _prefix(self, rank: int) -> str:
        return f"{PREFIX}-{rank}"


class CheckpointShipped(Checkpoint):
    """Model and optimizer alone, as in TensorFlow's guides."""

    def objects(self, state: State) -> tf.train.Checkpoint:
        """Return the saved objects.

        TensorFlow does not warn that dropout seeds and position are missing.
        """
        return tf.train.Checkpoint(model=state.model, optimizer=state.optimizer)
