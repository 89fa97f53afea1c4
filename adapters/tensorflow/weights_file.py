"""Keras's model.save_weights, with which rank 0 writes HDF5.

It writes one file, or several files and an index. They hold the optimizer of a compiled model, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adapters.base import Entry, Method, Pending
from adapters.shared.formats import hdf5
from adapters.tensorflow import roles
from adapters.tensorflow.state import State

GIB = 1 << 30


class WeightsFile(Method[State]):
    """Weights and optimizer in one file."""

    file = "model.weights.h5"  # with the suffix that Keras requires

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder."""
        if self.place.rank == 0:
            path.mkdir()
            state.model.save_weights(path / self.file, max_shard_size=self.max_shard_gib(state))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read into the variables of the state."""
        state.model.load_weights(path / self.file)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the datasets in all files."""
        for file in sorted(path.glob("*.weights.h5")):
            yield from hdf5.datasets(file, roles.of_dataset, file.name)

    def max_shard_gib(self, state: State) -> float | None:
        """Return the largest size of a file in GiB, or None for a single file."""
        return None


class ShardedWeights(WeightsFile):
    """Weights and optimizer in several files.

    The option `shards` is about their number. Keras divides no tensor, and raises an error if one
    does not fit into a file.
    """

    file = "model.weights.json"

    def max_shard_gib(self, state: State) -> float:
        """Return an even share of the state, or the size of the largest tensor if that is more."""
        sizes = [tensor.nbytes for tensor in state.tensors().values()]
        return max(sum(sizes) / self.options["shards"], *sizes) / GIB
