"""equinox.tree_serialise_leaves, which writes all leaves of a pytree one after the other."""

from pathlib import Path

import equinox
import jax

from adapters.base import Method, Pending
from adapters.jax.state import State


class Equinox(Method[State]):
    """The whole state in one file of numpy arrays."""

    def save(self, state: State, path: Path) -> Pending:
        # equinox would add a suffix to the name of a file.
        with path.open("wb") as file:
            equinox.tree_serialise_leaves(file, state.tree())
        return Pending()

    def load(self, state: State, path: Path) -> None:
        with path.open("rb") as file:
            loaded = equinox.tree_deserialise_leaves(file, state.tree())
        state.adopt(jax.device_put(loaded, self.framework.device) | {"step": int(loaded["step"])})
