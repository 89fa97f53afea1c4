"""chainer.serializers.save_hdf5 and load_hdf5 of the whole state, which rank 0 writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chainer.serializers import load_hdf5, save_hdf5

from adapters.base import Entry, Method, Pending
from adapters.chainer.state import State, entry_role
from adapters.shared.formats import hdf5


class Hdf5(Method[State]):
    """The whole state in one HDF5 file.

    The option `gzip` is the level of compression. With 0, the datasets are contiguous and have no
    filter. Chainer's default is 4.
    """

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            save_hdf5(str(path), state, self.options["gzip"] or None)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read the file dataset by dataset into the memory of the state."""
        load_hdf5(str(path), state)

    def entries(self, path: Path) -> Iterator[Entry]:
        return hdf5.datasets(path, entry_role)
