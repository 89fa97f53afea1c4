"""One file of flax's msgpack serialization, by rank 0."""

from __future__ import annotations

from pathlib import Path

import jax
from flax import serialization

from adapters.base import Method, Pending
from adapters.jax.framework import Jax
from adapters.jax.state import State


class FlaxMsgpack(Method[State]):
    """The whole state as one string of bytes, which the script writes and reads itself."""

    framework: Jax

    def save(self, state: State, path: Path) -> Pending:
        """Write one file."""
        if self.place.rank == 0:
            path.write_bytes(serialization.to_bytes(self.framework.on_host(state.tree())))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read the file, then move the values to the device."""
        loaded = serialization.from_bytes(state.tree(), path.read_bytes())
        state.adopt(jax.device_put(loaded, self.framework.device) | {"step": int(loaded["step"])})
