"""Kill a training while BackupAndRestore writes its second backup, and start the training again."""

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

TRAINING = """
import resource, signal, sys
from pathlib import Path
import keras, numpy

class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and sys.argv[2] == "kill":
            half = Path(sys.argv[1], "latest.weights.h5").stat().st_size // 2
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel kills beyond the limit
            resource.setrlimit(resource.RLIMIT_FSIZE, (half, half))

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(64)])
model.compile("sgd", "mse")
data = numpy.ones((8, 64))
backup = keras.callbacks.BackupAndRestore(sys.argv[1])
model.fit(data, data, epochs=3, verbose=0, callbacks=[Kill(), backup])
"""


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own."""
    command = [sys.executable, "-c", TRAINING, *arguments]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)


folder = tempfile.mkdtemp()
print("keras", version("keras"))
print("the training is killed by signal", -train(folder, "kill").returncode)
print("backups that are left:", len(list(Path(folder).glob("*.h5"))))
again = train(folder, "go on")
error = again.stderr.strip().rpartition("\n")[2].partition(":")[0]
print("the training that is to go on ends with:", error if again.returncode else "no error")
