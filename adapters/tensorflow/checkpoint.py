"""tf.train.Checkpoint: an index and a data file, by rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from adapters.base import Entry, Method, Pending
from adapters.tensorflow import bundle, roles
from adapters.tensorflow.state import State
from workloads import Role

PREFIX = "state"  # of the names of a checkpoint's files


class Checkpoint(Method[State]):
    """`write` and `read` of model, optimizer, dropout seeds and position."""

    def save(self, state: State, path: Path) -> Pending:
        """Write one folder of two files."""
        if self.place.rank == 0:
            self.objects(state).write(path / PREFIX)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read into the state's own variables, every one of which must be there."""
        status = self.objects(state).read(path / PREFIX)
        # An asynchronous write adds TensorFlow's own counter of saves, which is left where it is.
        status.assert_existing_objects_matched().expect_partial()

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the variables and what describes them."""
        return bundle.tensors(path, PREFIX, self.role)

    def objects(self, state: State) -> tf.train.Checkpoint:
        """Return what is saved, as scripts list it.

        The seeds must be named: no Keras object hands them on.
        """
        return tf.train.Checkpoint(
            model=state.model, optimizer=state.optimizer, rng=state.rng, step=state.step
        )

    def role(self, name: str) -> Role | None:
        """Return the role of a variable by its path through `objects`.

        A variable that several objects share has one of its paths: a weight that of the optimizer's
        list of what it trains. The learning rate is a setting, and no state.
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
    """With the remedy for what differs between the ranks: each writes the whole state into two files of its own."""

    def save(self, state: State, path: Path) -> Pending:
        """Write this rank's files into one folder."""
        self.objects(state).write(path / self._prefix(self.place.rank))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read this rank's files into the state's own variables."""
        self.objects(state).read(path / self._prefix(self.place.rank)).assert_consumed()

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the variables of every rank."""
        for rank in range(self.place.world):
            yield from bundle.tensors(path, self._prefix(rank), self.role)

    def _prefix(self, rank: int) -> str:
        return f"{PREFIX}-{rank}"


class CheckpointShipped(Checkpoint):
    """Model and optimizer alone, as TensorFlow's guides have it."""

    def objects(self, state: State) -> tf.train.Checkpoint:
        """Return what is saved: the seeds of dropout are left out, without a word, and so is the position."""
        return tf.train.Checkpoint(model=state.model, optimizer=state.optimizer)
