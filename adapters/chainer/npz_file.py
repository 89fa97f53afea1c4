"""chainer.serializers.save_npz and load_npz, by rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chainer.serializers import load_npz, save_npz

from adapters.base import Entry, Method, Pending
from adapters.chainer.state import State, entry_role
from adapters.shared.formats import archive


class Npz(Method[State]):
    """The whole state. Option: `compression` (deflate, which Chainer has on)."""

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


class NpzShipped(Method[State]):
    """Model and optimizer, as Chainer's documentation saves them: without the random generator and the position."""

    parts = ("model", "optimizer")

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder of two files."""
        if self.place.rank == 0:
            path.mkdir()
            for part in self.parts:
                save_npz(str(path / f"{part}.npz"), getattr(state, part))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read both files, entry by entry."""
        for part in self.parts:
            load_npz(str(path / f"{part}.npz"), getattr(state, part))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the arrays of both files."""
        for part in self.parts:
            yield from members(path / f"{part}.npz", f"{part}.npz", f"{part}/")


def members(path: Path, file: str | None = None, above: str = "") -> Iterator[Entry]:
    """Yield the arrays of an archive by Chainer, which a snapshot is as well.

    `file` is its path inside the checkpoint, where it is not all of it; `above` the path of what it
    holds inside the state.
    """
    return archive.members(
        path, lambda member: entry_role(above + member.removesuffix(".npy")), file
    )
