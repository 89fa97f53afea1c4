"""One safetensors file of all arrays under their canonical names, written by rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
from safetensors.flax import load_file, save_file

from adapters.base import Entry, Pending
from adapters.jax.one_writer import OneWriter
from adapters.jax.state import State
from adapters.shared.formats import safetensors
from workloads import role_of


class Safetensors(OneWriter):
    """Arrays under canonical names.

    The format holds nothing but arrays, so the position is saved as an array.
    """

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            save_file(self.framework.on_host(state.tensors()), path)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read new arrays, and put them in the place of the state's arrays."""
        # The new arrays lie where the old ones are, so that JAX compiles no program again.
        places = {name: array.sharding for name, array in state.tensors().items()}
        state.adopt_tensors(jax.device_put(load_file(path), places))

    def entries(self, path: Path) -> Iterator[Entry]:
        return safetensors.tensors(path, role_of)
