"""tf.train.Checkpoint with `enable_async`: a copy in host memory, written by a thread.

TensorFlow leaves the thread and the copy to the interpreter's exit, and its errors to the next
write. The names with an underscore are those of TensorFlow 2.21; there is no public way.
"""

from __future__ import annotations

import atexit
from pathlib import Path

import tensorflow as tf

from adapters.base import Pending
from adapters.tensorflow.checkpoint import PREFIX, Checkpoint
from adapters.tensorflow.state import State
from workloads import Role, role_of


class AsyncWrite(Pending):
    """A write under way. The copy had been taken when `write` returned.

    On a CPU it shares the variables' memory until they change, so that a part of its cost falls to
    the next step.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        self._checkpoint = checkpoint

    def finished(self) -> None:
        """Return when the files are written."""
        self._checkpoint.sync()
        self._checkpoint._async_checkpointer()._check_async_thread_error()


class CheckpointAsync(Checkpoint):
    """As shipped: one checkpoint object for all saves, which keeps its thread and its copy."""

    def open(self, state: State) -> None:
        """Gather what `save` will write. The thread starts with the first save."""
        self._state = state
        self._checkpoint = self.objects(state)

    def save(self, state: State, path: Path) -> Pending:
        """Take the copy and start to write one folder."""
        if self.place.rank != 0:
            return Pending()
        if state is not self._state:
            self.close()
            self.open(state)
        self._checkpoint.write(path / PREFIX, tf.train.CheckpointOptions(enable_async=True))
        return AsyncWrite(self._checkpoint)

    def close(self) -> None:
        """End the thread and give up the copy."""
        writer = self._checkpoint._async_checkpointer_impl
        if writer is not None:
            atexit.unregister(writer._join_async_save_thread)
            writer._join_async_save_thread()


class CheckpointAsyncPlain(CheckpointAsync):
    """With the remedy: the tf.Variables inside Keras's objects, under canonical names.

    The copy of a Keras variable makes a new tf.Variable for every save, which TensorFlow forbids
    from the second save on.
    """

    def objects(self, state: State) -> tf.train.Checkpoint:
        """Return all variables."""
        return tf.train.Checkpoint(state=state.plain_variables())

    def role(self, name: str) -> Role | None:
        """Return the role of a variable by its path: the canonical name with TensorFlow's ".S" for a slash."""
        top, _, escaped = name.partition("/")
        return role_of(escaped.partition(".S")[0]) if top == "state" else None
