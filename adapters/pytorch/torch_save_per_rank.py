"""torch.save of one file from every rank, with all that this rank holds.

Many training scripts save in this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from adapters.base import Entry, Method, Pending
from adapters.pytorch.state import State
from workloads import role_of


class TorchSavePerRank(Method[State]):
    """One file from every rank, without communication.

    Every file holds the replicated tensors, and only as many ranks can load the files.
    """

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir(exist_ok=True)
        tensors = {name: _compact(tensor) for name, tensor in state.local_tensors().items()}
        torch.save(tensors, self._file(path))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read this rank's file into host memory, and copy the values into the state."""
        state.restore_tensors(torch.load(self._file(path), map_location="cpu", weights_only=True))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the tensors in the files of all ranks."""
        for file in sorted(path.iterdir()):
            tensors = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
            for name, tensor in tensors.items():
                stored_bytes = tensor.untyped_storage().nbytes()
                yield Entry(file.name, name, role_of(name), stored_bytes, stored_bytes)

    def _file(self, path: Path) -> Path:
        return path / f"rank-{self.place.rank}-of-{self.place.world}.pt"


def _compact(tensor: Tensor) -> Tensor:
    """Return the tensor in memory of exactly its size.

    torch.save writes all the memory behind a view, which includes the padding of FSDP.
    """
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
