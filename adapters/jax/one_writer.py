"""What methods have in common that write the whole state as one file."""

from __future__ import annotations

from adapters.base import Method
from adapters.jax.framework import Jax
from adapters.jax.state import State


class OneWriter(Method[State]):
    """A method by which rank 0 writes its state for all ranks, and every rank reads it."""

    framework: Jax

    def open(self, state: State) -> None:
        """Raise ValueError where rank 0 has only its part of the state."""
        if self.framework.strategy.layout is not None:
            raise ValueError(
                f"{type(self).__name__} has rank 0 write the state, and of a sharded one no rank has the whole"
            )
