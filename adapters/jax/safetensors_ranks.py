"""A folder of safetensors files: every rank writes and reads its own, without a word to the others."""

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
    """A rank's file has its parts of a sharded state and, of a replicated one, everything."""

    framework: Jax

    def save(self, state: State, path: Path) -> Pending:
        """Write this rank's file."""
        path.mkdir(exist_ok=True)
        save_file(self.framework.on_host(state.tensors()), self._file(path))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read this rank's file into new arrays like the state's, and put them in their place."""
        parts = load_file(self._file(path))
        state.adopt_tensors(
            {name: with_own_part(array, parts[name]) for name, array in state.tensors().items()}
        )

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the tensors of all files."""
        for file in sorted(path.iterdir()):
            yield from safetensors.tensors(file, role_of, file.name)

    def _file(self, path: Path) -> Path:
        return path / f"rank{self.place.rank}.safetensors"
