"""One safetensors file of all tensors under their canonical names, written by rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load_file, save_file

from adapters.base import Entry, Method, Pending
from adapters.pytorch.state import State
from adapters.shared.formats import safetensors
from workloads import role_of


class Safetensors(Method[State]):
    """Tensors under canonical names.

    The format holds nothing but tensors, so random generators and position are saved as tensors.
    """

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            save_file(state.tensors(), path)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Map the file, copy the values, and end the mapping."""
        state.restore_tensors(load_file(path))

    def entries(self, path: Path) -> Iterator[Entry]:
        return safetensors.tensors(path, role_of)
