"""Keras's BackupAndRestore, a callback of model.fit."""

from __future__ import annotations

from pathlib import Path

import keras

from adapters.base import NothingToRestore, Pending, Store
from adapters.tensorflow.state import State


class KerasBackup(Store[State]):
    """The callback, whose hooks are called as model.fit calls them. An epoch is one step.

    It overwrites the files of the last backup. With the option `keep` of 2, it copies them first.
    """

    def open(self, state: State, folder: Path) -> None:
        self._folder = folder
        keeps_two = self.options["keep"] > 1
        self._callback = keras.callbacks.BackupAndRestore(str(folder), double_checkpoint=keeps_two)

    def save(self, state: State, step: int) -> Pending:
        """End an epoch. Keras counts epochs from 0."""
        if self.place.rank == 0:
            self._callback.set_model(state.model)
            self._callback.on_epoch_end(step - 1)
        return Pending()

    def restore_latest(self, state: State) -> int:
        """Begin a training, and return the epoch at which model.fit would go on."""
        if not any(self._folder.iterdir()):
            raise NothingToRestore(f"no backup in {self._folder}")
        # An earlier restore into this model may have set it.
        state.model._initial_epoch = None
        self._callback.set_model(state.model)
        self._callback.on_train_begin()
        return state.model._initial_epoch or 0

    # `close` does not call the hook `on_train_end`, because that removes the backup.
