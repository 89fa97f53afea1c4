"""tf.train.Checkpoint: an index and a data file, by rank 0."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from adapters.base import Method, Pending
from adapters.tensorflow.state import State

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

    def objects(self, state: State) -> tf.train.Checkpoint:
        """Return what is saved, as scripts list it. The seeds must be named: no Keras object hands them on."""
        return tf.train.Checkpoint(model=state.model, optimizer=state.optimizer, rng=state.rng, step=state.step)
