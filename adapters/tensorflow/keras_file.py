"""Keras's model.save, with which rank 0 writes architecture, weights and optimizer in one file."""

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

POSITION = "position"  # no layer has this name


class KerasFile(Method[State]):
    """A zip archive of the architecture and an HDF5 file."""

    file = "model.keras"  # with the suffix that Keras requires

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder of one file."""
        if self.place.rank == 0:
            path.mkdir()
            state.model.save(path / self.file)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Let Keras make a new model, and copy its values."""
        loaded = keras.saving.load_model(path / self.file)
        copy(loaded.weights, state.model.weights)
        copy(loaded.optimizer.variables, state.optimizer.variables)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the datasets in the HDF5 file, which is stored without compression."""
        with (
            zipfile.ZipFile(path / self.file) as archive,
            archive.open("model.weights.h5") as content,
        ):
            yield from hdf5.datasets(path / self.file, roles.of_dataset, self.file, content)


class KerasFileWithSeeds(KerasFile):
    """The file of Keras, and beside it a small HDF5 file with dropout seeds and position.

    Keras's files hold neither.
    """

    beside = "seeds.h5"

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder of two files."""
        pending = super().save(state, path)
        if self.place.rank == 0:
            with h5py.File(path / self.beside, "w") as file:
                for name, variable in _left_out(state).items():
                    file[name] = variable.numpy()
        return pending

    def load(self, state: State, path: Path) -> None:
        """Copy the new model's values, and those in the file beside it."""
        super().load(state, path)
        with h5py.File(path / self.beside) as file:
            for name, variable in _left_out(state).items():
                variable.assign(file[name][()])

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the datasets in both files."""
        yield from super().entries(path)
        yield from hdf5.datasets(path / self.beside, _role_beside, self.beside)


class LegacyFile(KerasFile):
    """One HDF5 file, as before Keras 3.

    It holds the optimizer. But Keras 3.15 makes no slots in a loaded optimizer, so that nothing can
    be read into them.
    """

    file = "model.h5"

    def save(self, state: State, path: Path) -> Pending:
        """Write a folder of one file."""
        pending = super().save(state, path)
        # Keras removes the optimizer from the model's description. Without this, later .keras files
        # would lack it.
        state.compile()
        return pending

    def load(self, state: State, path: Path) -> None:
        """Let Keras make a new model, and copy the values of its weights."""
        copy(keras.saving.load_model(path / self.file).weights, state.model.weights)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the datasets, with those of the optimizer."""
        return hdf5.datasets(path / self.file, roles.of_legacy_dataset, self.file)


def _role_beside(name: str) -> Role:
    return Role.POSITION if name == POSITION else Role.RNG


def _left_out(state: State) -> dict[str, Variable]:
    """Return the variables that Keras's files lack."""
    return {**state.rng, POSITION: state.step}
