"""model.save_weights of Keras: HDF5 in one file or in several with an index, by rank 0.

A compiled model's optimizer is in it.
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
    """One file."""

    file = "model.weights.h5"  # Keras insists on the suffix

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder."""
        if self.place.rank == 0:
            path.mkdir()
            state.model.save_weights(path / self.file, max_shard_size=self.max_shard_gib(state))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read into the state's own variables."""
        state.model.load_weights(path / self.file)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the datasets of all files."""
        for file in sorted(path.glob("*.weights.h5")):
            yield from hdf5.datasets(file, roles.of_dataset, file.name)

    def max_shard_gib(self, state: State) -> float | None:
        """Return how large a file may become, or None for a single one."""
        return None


class ShardedWeights(WeightsFile):
    """Options: `shards`, into about how many files the state is divided.

    Keras divides no tensor, and refuses one too large.
    """

    file = "model.weights.json"

    def max_shard_gib(self, state: State) -> float:
        """Return an even share, or the size of the largest tensor."""
        sizes = [tensor.nbytes for tensor in state.tensors().values()]
        return max(sum(sizes) / self.options["shards"], *sizes) / GIB
