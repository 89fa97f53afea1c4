"""One safetensors file of all tensors under their canonical names, by rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load_file, save_file

from adapters.base import Entry, Method, Pending
from adapters.pytorch.state import State
from adapters.shared.formats import safetensors
from workloads import role_of


class Safetensors(Method[State]):
    """The format holds tensors only, so the random generators and the position are saved as tensors."""

    def save(self, state: State, path: Path) -> Pending:
        """Write one file."""
        if self.place.rank == 0:
            save_file(state.tensors(), path)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Map the file and copy out of the mapping, which ends with the copy."""
        state.restore_tensors(load_file(path))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the tensors."""
        return safetensors.tensors(path, role_of)
