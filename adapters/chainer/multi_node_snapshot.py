"""chainermn.extensions.multi_node_snapshot: Chainer's snapshot, by one rank of every set of ranks that are taken for replicas.

The extension asks its trainer for nothing but the folder, both to save and to find the latest
snapshot again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chainermn
from chainer.training.extensions import snapshot_object
from chainermn.extensions import multi_node_snapshot

from adapters.base import Entry, Method, Pending
from adapters.chainer.npz_file import members
from adapters.chainer.state import State

FILE = "snapshot"  # to which ChainerMN adds the rank


@dataclass(frozen=True)
class Trainer:
    """The part of chainer.training.Trainer that a snapshot of an object uses."""

    out: str


@dataclass(frozen=True)
class OneRank:
    """The communicator of a world of one: ChainerMN's own would start MPI, which takes seconds and leaves a folder behind."""

    rank: int = 0
    size: int = 1

    def finalize(self) -> None:
        """Have nothing to give back."""


class MultiNodeSnapshot(Method[State]):
    """As shipped: all ranks are one set of replicas.

    Rank 0 writes its view, and sends it to the others after a load.
    """

    def open(self, state: State) -> None:
        """Make the communicator by which the ranks exchange what one of them has loaded."""
        self._communicator = (
            chainermn.create_communicator("naive") if self.place.world > 1 else OneRank()
        )

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder with a file of every set."""
        path.mkdir(exist_ok=True)  # as trainers do on every rank
        self._extension(state)(Trainer(str(path)))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Have every set's first rank find its file and send what it has loaded to the set's others, deflated."""
        self._extension(state).initialize(Trainer(str(path)))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the arrays of all files."""
        for file in sorted(path.iterdir()):
            yield from members(file, file.name)

    def close(self) -> None:
        """Give the communicator back."""
        self._communicator.finalize()

    def replica_sets(self) -> Sequence[Sequence[int]]:
        """Return the sets of replicas; ranks that are in none are one more."""
        return []

    def _extension(self, state: State) -> Any:
        snapshot = snapshot_object(state, FILE, autoload=True)
        return multi_node_snapshot(self._communicator, snapshot, self.replica_sets())


class MultiNodeSnapshotOfEach(MultiNodeSnapshot):
    """With the remedy for what differs between the ranks: each is a set of its own, and writes the whole state."""

    def replica_sets(self) -> Sequence[Sequence[int]]:
        """Return as many sets as ranks."""
        return [[rank] for rank in range(self.place.world)]
