"""equinox.tree_serialise_leaves, which writes all leaves of a pytree one after the other."""

from pathlib import Path

import equinox
import jax

from adapters.base import Method, Pending
from adapters.jax.state import State


class Equinox(Method[State]):
    """The whole state in one file of numpy arrays."""

    def save(self, state: State, path: Path) -> Pending:
        equinox.tree_serialise_leaves(path, state.tree())
        return Pending()

    def load(self, state: State, path: Path) -> None:
        loaded = equinox.tree_deserialise_leaves(path, state.tree())
        state.adopt(jax.device_put(loaded, self.framework.device) | {"step": int(loaded["step"])})
