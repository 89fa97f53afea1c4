"""A folder with one safetensors file for each rank, which writes and reads it alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors.flax import load_file, save_file

from adapters.base import Entry, Method, Pending
from adapters.jax.framework import Jax
from adapters.jax.layout import with_own_part
from adapters.jax.state import State
from adapters.shared.formats import safetensors
from workloads import role_of


class SafetensorsPerRank(Method[State]):
    """One file from every rank, with its part of a sharded state or all of a replicated one."""

    framework: Jax

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir(exist_ok=True)
        save_file(self.framework.on_host(state.tensors()), self._file(path))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read this rank's file into new arrays, which replace the arrays of the state."""
        parts = load_file(self._file(path))
        tensors = state.tensors()
        for name, array in tensors.items():
            tensors[name] = with_own_part(array, parts[name])
        state.adopt_tensors(tensors)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the tensors in the files of all ranks."""
        for file in sorted(path.iterdir()):
            yield from safetensors.tensors(file, role_of, file.name)

    def _file(self, path: Path) -> Path:
        return path / f"rank{self.place.rank}.safetensors"
