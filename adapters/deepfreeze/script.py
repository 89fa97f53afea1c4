"""DeepFreeze for a training script, whose state is a dictionary of numpy arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from adapters.base import DirectIo, Framework, Place
from adapters.deepfreeze.errors import Unfitting
from adapters.deepfreeze.method import REQUEST_BYTES, DeepFreezeMethod
from adapters.deepfreeze.save import Save
from adapters.deepfreeze.stored import Stored, open_stored
from adapters.deepfreeze.tensor import Bytes, Source, Spec

Arrays = dict[str, NDArray[Any]]

_IO = DirectIo(direct=True, block_bytes=REQUEST_BYTES, depth=2)


class DeepFreeze(DeepFreezeMethod[Arrays]):
    """Saves the arrays of one process over and over, and loads them.

    Make it once, because its memory is as large as the arrays. The arrays may change when a save's
    `staged()` returns, and the checkpoint is durable when its `finished()` returns.
    """

    def __init__(self, arrays: Arrays, memory: Path | None = None) -> None:
        """Take arrays with the names, types and shapes of those that later calls are about.

        With `memory`, a folder of a file system in memory, the copies lie there and outlive the
        process. Loads take them from there while they are there.
        """
        temporary = Path(tempfile.gettempdir())
        place = Place(0, 1, "cpu", temporary, _IO, memory=memory)
        options = {"restore_from_memory": memory is not None}
        # The framework is asked for the leaves of a state alone, and `specs` does without them.
        no_framework = cast("Framework[Arrays]", None)
        super().__init__(place, no_framework, options)
        self.open(arrays)

    def specs(self, state: Arrays) -> list[Spec]:
        return [Spec(name, str(array.dtype), array.shape) for name, array in state.items()]

    def sources(self, state: Arrays) -> Mapping[str, Source]:
        self._require_alike(state)
        return {name: _bytes(array) for name, array in state.items()}

    def step(self, state: Arrays) -> int:
        raise ValueError("arrays have no step, so give one to `save`")

    def save(self, state: Arrays, path: Path | str, step: int | None = None) -> Save:
        """Save the arrays in a new folder, with the number of the steps taken.

        Raise FileExistsError if there is something at `path` already.
        """
        return super().save(state, Path(path), step)

    def load(self, state: Arrays, path: Path | str) -> None:
        """Put the arrays of a checkpoint into the dictionary, in new memory.

        Raise Damaged if the checkpoint does not hold what was saved, and Unfitting if it holds
        arrays that the dictionary lacks. Otherwise they would be lost without a word, as where the
        optimizer has taken no step yet.
        """
        path = Path(path)
        folder = self.nearest(path)
        loaded = self.engine.load(folder, self.tensors, targets={})
        self._require_all(open_stored(folder, is_arena=folder != path), folder)
        for spec in self.tensors:
            state[spec.name] = loaded[spec.name].view(spec.dtype).reshape(spec.shape)

    def _require_alike(self, arrays: Arrays) -> None:
        """Raise ValueError unless the arrays are those that this was made for."""
        known = {spec.name: (spec.dtype, spec.shape) for spec in self.tensors}
        given = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
        different = sorted(name for name in {*known, *given} if known.get(name) != given.get(name))
        if different:
            name = different[0]
            raise ValueError(
                f"{name} is {_in_words(given.get(name))}, and was {_in_words(known.get(name))} "
                "when DeepFreeze was made; make it anew after the arrays have changed"
            )

    def _require_all(self, stored: Stored, folder: Path) -> None:
        names = {tensor.name for file in stored.files for tensor in file.tensors}
        lost = sorted(names - {spec.name for spec in self.tensors})
        if lost:
            raise Unfitting(
                f"{folder} holds {len(lost)} arrays that the dictionary lacks, such as {lost[0]}; "
                "make them before the load, as a step of the optimizer does"
            )


def _in_words(kind: tuple[str, tuple[int, ...]] | None) -> str:
    """Return the type and shape of an array in words; those of one that is not there."""
    return "missing" if kind is None else f"{kind[0]}{list(kind[1])}"


def _bytes(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
