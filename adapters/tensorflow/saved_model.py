"""Keras's model.export, with which rank 0 writes a TensorFlow SavedModel.

It holds the compiled forward pass and the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from adapters.base import Entry, Method, Pending
from adapters.tensorflow import bundle, roles
from adapters.tensorflow.state import State, copy
from workloads import Role

VARIABLES = "variables/variables"  # the prefix of the bundle


class SavedModel(Method[State]):
    """The format from which models are served.

    It holds the dropout seeds, too, but nothing of the optimizer. Keras 3.15 writes every weight
    twice, as a Keras variable and as the tf.Variable inside.
    """

    def save(self, state: State, path: Path) -> Pending:
        """Compile the forward pass, and write a folder."""
        if self.place.rank == 0:
            state.model.export(path, verbose=False)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Let TensorFlow make new variables, and copy the values of the weights."""
        loaded = tf.saved_model.load(path)
        copy(loaded.trainable_variables, state.model.trainable_variables)
        copy(
            loaded.non_trainable_variables,
            state.model.non_trainable_variables,
            leave_out=state.rng.values(),
        )

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the variables under both of their paths. Their Keras names give the roles."""
        names = bundle.variable_names(path, VARIABLES)

        def role(variable_path: str) -> Role:
            return roles.of_variable(names[variable_path])

        return bundle.tensors(path, VARIABLES, role)
