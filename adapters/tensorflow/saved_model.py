"""model.export of Keras: a TensorFlow SavedModel, with the compiled forward pass and the weights, by rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from adapters.base import Entry, Method, Pending
from adapters.tensorflow import bundle, roles
from adapters.tensorflow.state import State, copy

VARIABLES = "variables/variables"  # the prefix of the bundle


class SavedModel(Method[State]):
    """The format to serve a model from.

    It holds the dropout seeds, too, but nothing of the optimizer.

    Keras 3.15 writes every weight twice: as its own variable, and as the tf.Variable inside.
    """

    def save(self, state: State, path: Path) -> Pending:
        """Compile the forward pass and write one folder."""
        if self.place.rank == 0:
            state.model.export(path, verbose=False)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Have TensorFlow make new variables, and take the values of the weights over."""
        loaded = tf.saved_model.load(path)
        copy(loaded.trainable_variables, state.model.trainable_variables)
        copy(
            loaded.non_trainable_variables,
            state.model.non_trainable_variables,
            leave_out=state.rng.values(),
        )

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the variables, each under both of its paths; only their Keras names tell what they are."""
        names = bundle.variable_names(path, VARIABLES)
        return bundle.tensors(path, VARIABLES, lambda variable: roles.of_variable(names[variable]))
