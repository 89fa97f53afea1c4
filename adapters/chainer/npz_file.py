"""chainer.serializers.save_npz and load_npz of the whole state, by rank 0."""

from __future__ import annotations

from pathlib import Path

from chainer.serializers import load_npz, save_npz

from adapters.base import Method, Pending
from adapters.chainer.state import State


class Npz(Method[State]):
    """Option: `compression` (deflate, which Chainer has on)."""

    def save(self, state: State, path: Path) -> Pending:
        """Write one file."""
        if self.place.rank == 0:
            save_npz(str(path), state, self.options["compression"])
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read the file, entry by entry."""
        load_npz(str(path), state)
