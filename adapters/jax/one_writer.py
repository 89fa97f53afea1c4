"""The base class of methods that write the whole state as one file."""

from __future__ import annotations

from adapters.base import Method
from adapters.jax.framework import Jax
from adapters.jax.state import State


class OneWriter(Method[State]):
    """A method with which rank 0 writes its state, and every rank reads it."""

    framework: Jax

    def open(self, state: State) -> None:
        """Raise ValueError if rank 0 holds a part of the state alone."""
        if self.framework.strategy.layout is not None:
            raise ValueError(
                f"{type(self).__name__} lets rank 0 write the state, "
                "but no rank holds the whole of a sharded state"
            )
