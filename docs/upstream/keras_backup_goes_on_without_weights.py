"""Take the weights out of the backup of a training, and start the training again."""

import os
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy

EPOCHS = 4
DATA = numpy.ones((8, 4))


class Begin(keras.callbacks.Callback):
    """Notes the epoch that a training begins with, and its weights then."""

    epoch: int | None = None
    weights: numpy.ndarray

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Note both in the first epoch."""
        if self.epoch is None:
            self.epoch, self.weights = epoch, self.model.get_weights()[0]


def train(folder: str, epochs: int) -> Begin:
    """Train a model that begins with zeros, and go on from a backup if there is one."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    begin = Begin()
    model.fit(DATA, DATA[:, :1], epochs=epochs, verbose=0, callbacks=[backup, begin])
    return begin


with tempfile.TemporaryDirectory() as folder:
    print("keras", version("keras"))
    train(folder, EPOCHS // 2)
    Path(folder, "latest.weights.h5").unlink()
    again = train(folder, EPOCHS)
    print("no error, and the training goes on at epoch", again.epoch)
    print("its weights are", again.weights.ravel().tolist())
