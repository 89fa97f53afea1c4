"""chainer.serializers.save_npz and load_npz of the whole state, by rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chainer.serializers import load_npz, save_npz

from adapters.base import Entry, Method, Pending
from adapters.chainer.state import State, entry_role
from adapters.formats import archive


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

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the arrays, each with numpy's header of 128 bytes."""
        return members(path)


def members(path: Path) -> Iterator[Entry]:
    """Yield the arrays of an archive by Chainer, which a snapshot is as well."""
    return archive.members(path, lambda member: entry_role(member.removesuffix(".npy")))
