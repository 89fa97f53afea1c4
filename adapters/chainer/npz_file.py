"""chainer.serializers.save_npz and load_npz, with which rank 0 writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chainer.serializers import load_npz, save_npz

from adapters.base import Entry, Method, Pending
from adapters.chainer.state import State, entry_role
from adapters.shared.formats import archive
from workloads import Role


class Npz(Method[State]):
    """The whole state in one file.

    The option `compression` deflates it, as Chainer's default does.
    """

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            save_npz(str(path), state, self.options["compression"])
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read the file entry by entry."""
        load_npz(str(path), state)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the arrays. Each has numpy's header of 128 bytes."""
        return members(path)


class NpzShipped(Method[State]):
    """Model and optimizer, as in Chainer's documentation, without random generator and position."""

    parts = ("model", "optimizer")

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            path.mkdir()
            for part in self.parts:
                save_npz(str(path / f"{part}.npz"), getattr(state, part))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read both files entry by entry."""
        for part in self.parts:
            load_npz(str(path / f"{part}.npz"), getattr(state, part))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the arrays in both files."""
        for part in self.parts:
            yield from members(path / f"{part}.npz", f"{part}.npz", f"{part}/")


def members(path: Path, file: str | None = None, above: str = "") -> Iterator[Entry]:
    """Yield the arrays in an archive that Chainer wrote, such as a snapshot.

    `file` is the archive's path inside the checkpoint, or None if the archive is the checkpoint.
    `above` is the path inside the state of the part that the archive holds.
    """

    def role(member: str) -> Role | None:
        return entry_role(above + member.removesuffix(".npy"))

    return archive.members(path, role, file)
