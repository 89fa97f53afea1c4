"""numpy.savez, called as in its documentation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from adapters.base import Entry, Method, Pending
from adapters.raw.framework import Array, State
from adapters.shared.formats import archive
from workloads import Role, role_of


class Npz(Method[State]):
    """One uncompressed zip archive with an entry for every leaf, written by rank 0."""

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            arrays = {name: _host(leaf) for name, leaf in state.leaves.items()}
            # savez would add an extension to the name of a file.
            with path.open("wb") as stream:
                np.savez(stream, **arrays)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        with np.load(path) as arrays:
            for name, leaf in state.leaves.items():
                if isinstance(leaf, np.ndarray):
                    leaf[...] = arrays[name]
                else:
                    leaf.set(arrays[name])

    def entries(self, path: Path) -> Iterator[Entry]:
        return archive.members(path, _role)


def _role(member: str) -> Role:
    return role_of(member.removesuffix(".npy"))


def _host(leaf: Array) -> Array:
    return leaf if isinstance(leaf, np.ndarray) else leaf.get()
