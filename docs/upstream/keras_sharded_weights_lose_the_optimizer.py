"""Kill a save of sharded weights before its last write of the index, and load what is left."""

import os
import signal
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy

INDEX = "model.weights.json"
MIB_IN_GIB = 1 / 1024


def trained(epochs: int) -> keras.Model:
    """Return a model whose optimizer has state, the same one in every process."""
    keras.utils.set_random_seed(epochs)
    layers = [keras.layers.Dense(256) for _ in range(6)]
    model = keras.Sequential([keras.Input((256,)), *layers])
    model.compile("adam", "mse")
    data = numpy.ones((8, 256))
    model.fit(data, data, epochs=epochs, verbose=0)
    return model


def openings_of_index(model: keras.Model, folder: str, kill_at: int = 0) -> int:
    """Save, and return how often the index is opened. Die by SIGKILL before opening `kill_at`."""
    seen = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event == "open" and str(arguments[0]) == str(Path(folder, INDEX)):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    model.save_weights(Path(folder, INDEX), max_shard_size=MIB_IN_GIB)
    return seen


saved = trained(epochs=2)
last = openings_of_index(saved, tempfile.mkdtemp())
folder = tempfile.mkdtemp()
child = os.fork()
if child == 0:
    openings_of_index(saved, folder, kill_at=last)
    os._exit(0)
_, status = os.waitpid(child, 0)
print("keras", version("keras"))
print("the save is killed by signal", os.WTERMSIG(status))

loaded = trained(epochs=1)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    try:
        loaded.load_weights(Path(folder, INDEX))
        print("load_weights raises: nothing")
    except Exception as error:
        print("load_weights raises:", type(error).__name__)
print("warnings:", len(warned))
pairs = list(zip(saved.optimizer.variables, loaded.optimizer.variables, strict=True))
wrong = sum(not numpy.array_equal(one.numpy(), other.numpy()) for one, other in pairs)
print(f"wrong variables of the optimizer: {wrong} of {len(pairs)}")
pairs = list(zip(saved.weights, loaded.weights, strict=True))
wrong = sum(not numpy.array_equal(one.numpy(), other.numpy()) for one, other in pairs)
print(f"wrong weights of the model: {wrong} of {len(pairs)}")
