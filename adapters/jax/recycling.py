"""Reuse of the memory of a state's arrays by the arrays of a load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import jax
from jax import Array

from adapters.deepfreeze.tensor import Bytes, memory_at


class Recycling:
    """Give the memory of arrays to new arrays.

    Otherwise there would be new memory beside the old memory, and on a CPU it would be cleared.

    The memory is donated, as a training step donates the memory of the arrays that it changes.
    Using one of the old arrays afterwards raises an error that says it was deleted. If something
    else still uses the memory of an array, such as an array of numpy, that memory stays unchanged.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Compile the program that donates arrays like these."""
        here = {name: array for name, array in arrays.items() if _is_whole(array)}
        self._names = tuple(here)
        self._donate = _compiled(tuple(_like(array) for array in here.values()))

    def take(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return new arrays with the memory and the values of those that lie on one device.

        The old arrays are deleted. Nobody else has used the new arrays. They have their values once
        they are ready.
        """
        donated = [arrays[name] for name in self._names]
        return dict(zip(self._names, self._donate(donated), strict=True))


def memory_of(array: Array) -> Bytes:
    """Return the memory of an array on a CPU for writing.

    The caller must be the only one that uses the array, and must keep it while it writes.
    """
    return memory_at(array.unsafe_buffer_pointer(), array.nbytes)


def _like(array: Array) -> jax.ShapeDtypeStruct:
    """Return shape, type and sharding of an array.

    Without the sharding, the new arrays would have another one, and JAX would compile the next
    training step again.
    """
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


@lru_cache
def _compiled(arrays: tuple[jax.ShapeDtypeStruct, ...]) -> jax.stages.Compiled:
    return jax.jit(lambda donated: donated, donate_argnums=0).lower(list(arrays)).compile()


def _is_whole(array: Array) -> bool:
    """Return whether an array lies on one device of this process and has any elements."""
    return array.size > 0 and array.is_fully_addressable and len(array.devices()) == 1
