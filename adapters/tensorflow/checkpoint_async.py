"""tf.train.Checkpoint with `enable_async`, whose thread writes a copy in host memory.

TensorFlow keeps the thread and the copy until the interpreter exits, and raises errors in the next
write. There are no public functions to end them earlier, so this module uses names with an
underscore, which are those of TensorFlow 2.21.
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
    """A write in progress. The copy was taken before `write` returned.

    On a CPU the copy shares the memory of the variables until they change, so the next step takes a
    part of its cost.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        self._checkpoint = checkpoint

    def finished(self) -> None:
        """Wait until the files are written."""
        self._checkpoint.sync()
        self._checkpoint._async_checkpointer()._check_async_thread_error()


class CheckpointAsync(Checkpoint):
    """The method as shipped, with one checkpoint object that keeps its thread and its copy."""

    def open(self, state: State) -> None:
        """Make the checkpoint object. Its thread starts in the first save."""
        self._state = state
        self._checkpoint = self.objects(state)

    def save(self, state: State, path: Path) -> Pending:
        """Take the copy, and start to write a folder."""
        if self.place.rank != 0:
            return Pending()
        if state is not self._state:
            self.close()
            self.open(state)
        self._checkpoint.write(path / PREFIX, tf.train.CheckpointOptions(enable_async=True))
        return AsyncWrite(self._checkpoint)

    def close(self) -> None:
        """End the thread, and release the copy."""
        writer = self._checkpoint._async_checkpointer_impl
        if writer is not None:
            atexit.unregister(writer._join_async_save_thread)
            writer._join_async_save_thread()


class CheckpointAsyncPlain(CheckpointAsync):
    """The method that saves the tf.Variables inside Keras's objects, under canonical names.

    The copy of a Keras variable would make a new tf.Variable in every save. TensorFlow forbids that
    from the second save on.
    """

    def objects(self, state: State) -> tf.train.Checkpoint:
        """Return all variables as one object."""
        return tf.train.Checkpoint(state=state.plain_variables())

    def role(self, name: str) -> Role | None:
        """Return the role of a variable by its path.

        The path is a canonical name in which TensorFlow writes ".S" for a slash.
        """
        top, _, escaped = name.partition("/")
        return role_of(escaped.partition(".S")[0]) if top == "state" else None
