"""torch.save and torch.load of one nested dictionary, which rank 0 writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils.serialization.config
from torch import Tensor

from adapters.base import Entry, Method, Pending
from adapters.pytorch.modules import is_buffer
from adapters.pytorch.state import State
from workloads import Role

ROLES = {
    "model": Role.WEIGHT,
    "optimizer": Role.OPTIMIZER,
    "master": Role.OPTIMIZER,
    "rng": Role.RNG,
}


class TorchSave(Method[State]):
    """One file of torch.save.

    The option `zip` chooses between the zip format and the format before PyTorch 1.6. The option
    `crc` says whether the zip format has a CRC-32.
    """

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            with torch.utils.serialization.config.patch("save.compute_crc32", self.options["crc"]):
                torch.save(state.tree(), path, _use_new_zipfile_serialization=self.options["zip"])
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read the file into host memory, and copy the values into the state."""
        state.restore(torch.load(path, map_location="cpu", weights_only=True))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield each storage under the name of the first tensor that uses it.

        Both formats write a storage once, as it is in memory. The position is an integer inside the
        pickle, so it is no entry.
        """
        tree = torch.load(path, map_location="cpu", mmap=self.options["zip"], weights_only=True)
        seen: set[int] = set()
        for name, tensor in _tensors(tree):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                yield Entry(path.name, name, _role(name), storage.nbytes(), storage.nbytes())


def _tensors(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in tree.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{key}.")


def _role(name: str) -> Role:
    part, _, rest = name.partition(".")
    return Role.BUFFER if part == "model" and is_buffer(rest) else ROLES[part]
