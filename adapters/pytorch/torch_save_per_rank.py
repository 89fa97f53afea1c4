"""torch.save of a file per rank, each with what that rank holds and nothing else, as many training scripts do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from adapters.base import Entry, Method, Pending
from adapters.pytorch.state import State
from workloads import role_of


class TorchSavePerRank(Method[State]):
    """No rank knows of another: nothing is communicated, replicated tensors are in every file, and the world cannot change."""

    def save(self, state: State, path: Path) -> Pending:
        """Write this rank's file."""
        path.mkdir(exist_ok=True)
        torch.save(
            {name: _compact(tensor) for name, tensor in state.local_tensors().items()},
            self._file(path),
        )
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read this rank's file to the host, then take the values over."""
        state.restore_tensors(torch.load(self._file(path), map_location="cpu", weights_only=True))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the tensors of every rank's file."""
        for file in sorted(path.iterdir()):
            for name, tensor in torch.load(
                file, map_location="cpu", mmap=True, weights_only=True
            ).items():
                stored_bytes = tensor.untyped_storage().nbytes()
                yield Entry(file.name, name, role_of(name), stored_bytes, stored_bytes)

    def _file(self, path: Path) -> Path:
        return path / f"rank-{self.place.rank}-of-{self.place.world}.pt"


def _compact(tensor: Tensor) -> Tensor:
    """Return the tensor in memory of its own size: torch.save writes all the memory behind a view, FSDP's padding too."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
