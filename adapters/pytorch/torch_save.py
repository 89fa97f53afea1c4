"""torch.save and torch.load of one nested dictionary, by rank 0."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.utils.serialization.config

from adapters.base import Method, Pending
from adapters.pytorch.state import State


class TorchSave(Method[State]):
    """Options: `zip` (else the format before PyTorch 1.6) and `crc` (the zip format's CRC-32)."""

    def save(self, state: State, path: Path) -> Pending:
        """Write one file."""
        if self.place.rank == 0:
            with torch.utils.serialization.config.patch("save.compute_crc32", self.options["crc"]):
                torch.save(state.tree(), path, _use_new_zipfile_serialization=self.options["zip"])
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read the file to the host, then take the values over."""
        state.restore(torch.load(path, map_location="cpu", weights_only=True))
