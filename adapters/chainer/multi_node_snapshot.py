"""chainermn.extensions.multi_node_snapshot, which divides the ranks into sets of replicas.

One rank of each set writes Chainer's snapshot. To save, and to find the latest snapshot, the
extension needs the folder of its trainer alone.
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

FILE = "snapshot"  # ChainerMN adds the rank to this name


@dataclass(frozen=True)
class Trainer:
    """The part of chainer.training.Trainer that a snapshot uses."""

    out: str


@dataclass(frozen=True)
class OneRank:
    """The communicator of a world of one rank.

    ChainerMN's own communicator would start MPI, which takes seconds and leaves a folder behind.
    """

    rank: int = 0
    size: int = 1

    def finalize(self) -> None:
        """Do nothing, because there is nothing to give back."""


class MultiNodeSnapshot(Method[State]):
    """The extension as shipped, with all ranks in one set of replicas.

    Rank 0 writes its state. In a load, it reads the file and sends the state to the others.
    """

    def open(self, state: State) -> None:
        """Make the communicator with which a rank sends what it has loaded."""
        several = self.place.world > 1
        self._communicator = chainermn.create_communicator("naive") if several else OneRank()

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder with one file from each set."""
        path.mkdir(exist_ok=True)  # on every rank, as trainers do
        self._extension(state)(Trainer(str(path)))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Let the first rank of each set read its file, and send the state to the set, deflated."""
        self._extension(state).initialize(Trainer(str(path)))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the arrays in all files."""
        for file in sorted(path.iterdir()):
            yield from members(file, file.name)

    def close(self) -> None:
        self._communicator.finalize()

    def replica_sets(self) -> Sequence[Sequence[int]]:
        """Return the sets of replicas. The ranks that are in no set form one more."""
        return []

    def _extension(self, state: State) -> Any:
        snapshot = snapshot_object(state, FILE, autoload=True)
        return multi_node_snapshot(self._communicator, snapshot, self.replica_sets())


class MultiNodeSnapshotOfEach(MultiNodeSnapshot):
    """The extension with one set for each rank, which writes its whole state.

    So each rank gets back the values that differ from rank to rank.
    """

    def replica_sets(self) -> Sequence[Sequence[int]]:
        """Return one set for each rank."""
        return [[rank] for rank in range(self.place.world)]
