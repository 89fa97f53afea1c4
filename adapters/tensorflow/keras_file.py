"""model.save of Keras: architecture, weights and optimizer in one file, by rank 0."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import keras

from adapters.base import Entry, Method, Pending
from adapters.shared.formats import hdf5
from adapters.tensorflow import roles
from adapters.tensorflow.state import State, Variable, copy
from workloads import Role

POSITION = "position"  # no layer's name


class KerasFile(Method[State]):
    """A zip archive of a description and an HDF5 file."""

    file = "model.keras"  # Keras insists on the suffix

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder of one file."""
        if self.place.rank == 0:
            path.mkdir()
            state.model.save(path / self.file)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Have Keras make a new model, and take its values over."""
        loaded = keras.saving.load_model(path / self.file)
        copy(loaded.weights, state.model.weights)
        copy(loaded.optimizer.variables, state.optimizer.variables)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the datasets of the HDF5 file, which Keras packs without compression."""
        with (
            zipfile.ZipFile(path / self.file) as archive,
            archive.open("model.weights.h5") as content,
        ):
            yield from hdf5.datasets(path / self.file, roles.of_dataset, self.file, content)


class KerasFileWithSeeds(KerasFile):
    """With the remedy for what no file of Keras holds: the seeds of dropout and the position, in a small HDF5 file beside it."""

    beside = "seeds.h5"

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder of two files."""
        pending = super().save(state, path)
        if self.place.rank == 0:
            with h5py.File(path / self.beside, "w") as file:
                file.update({name: variable.numpy() for name, variable in _left_out(state).items()})
        return pending

    def load(self, state: State, path: Path) -> None:
        """Take over the new model's values, and those beside it."""
        super().load(state, path)
        with h5py.File(path / self.beside) as file:
            for name, variable in _left_out(state).items():
                variable.assign(file[name][()])

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the datasets of both files."""
        yield from super().entries(path)
        yield from hdf5.datasets(
            path / self.beside,
            lambda name: Role.POSITION if name == POSITION else Role.RNG,
            self.beside,
        )


class LegacyFile(KerasFile):
    """One HDF5 file, as before Keras 3.

    The optimizer is in it, but Keras 3.15 gives a loaded one no slots to read it into.
    """

    file = "model.h5"

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder of one file."""
        pending = super().save(state, path)
        # Keras strikes the optimizer from the model's description: later .keras files would do
        # without it
        state.compile()
        return pending

    def load(self, state: State, path: Path) -> None:
        """Have Keras make a new model, and take the values of its weights over."""
        copy(keras.saving.load_model(path / self.file).weights, state.model.weights)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the datasets, those of the optimizer included."""
        return hdf5.datasets(path / self.file, roles.of_legacy_dataset, self.file)


def _left_out(state: State) -> dict[str, Variable]:
    return {**state.rng, POSITION: state.step}
