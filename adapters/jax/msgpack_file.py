"""One file of flax's msgpack serialization, written by rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import serialization
from flax.traverse_util import flatten_dict

from adapters.base import Entry, Pending
from adapters.jax.one_writer import OneWriter
from adapters.jax.state import ROLES, State


class FlaxMsgpack(OneWriter):
    """The whole state as one string of bytes, which this class writes and reads itself."""

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            path.write_bytes(serialization.to_bytes(self.framework.on_host(state.tree())))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read the file, and move the values to the device."""
        loaded = serialization.from_bytes(state.tree(), path.read_bytes())
        state.adopt(jax.device_put(loaded, self.framework.device) | {"step": int(loaded["step"])})

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the leaves of the nested dictionary in the file."""
        tree = serialization.msgpack_restore(path.read_bytes())
        for name, value in flatten_dict(tree, sep="/").items():
            role = ROLES.get(name.partition("/")[0])
            size_bytes = _size_bytes(value)
            yield Entry(path.name, name, role, size_bytes, size_bytes)


def _size_bytes(value: Any) -> int:
    """Return the size of an array's elements, or the size of a number in msgpack."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(serialization.msgpack_serialize(value))
