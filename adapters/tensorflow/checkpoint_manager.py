"""tf.train.CheckpointManager, which names checkpoints and removes old ones."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from adapters.base import NothingToRestore, Pending, Store
from adapters.tensorflow.checkpoint import Checkpoint
from adapters.tensorflow.state import State


class CheckpointManager(Store[State]):
    """The manager of the checkpoints of model, optimizer, dropout seeds and position.

    A file named "checkpoint" holds the name of the newest.
    """

    def open(self, state: State, folder: Path) -> None:
        self._method = Checkpoint(self.place, self.framework, self.options)
        objects = self._method.objects(state)
        keep = self.options["keep"]
        self._manager = tf.train.CheckpointManager(objects, folder, max_to_keep=keep)

    def save(self, state: State, step: int) -> Pending:
        if self.place.rank == 0:
            self._manager.save(checkpoint_number=step)
        return Pending()

    def restore_latest(self, state: State) -> int:
        newest = self._manager.latest_checkpoint
        if newest is None:
            raise NothingToRestore(f"no checkpoint in {self._manager.directory}")
        status = self._method.objects(state).restore(newest)
        status.assert_existing_objects_matched().expect_partial()
        return int(newest.rpartition("-")[2])
