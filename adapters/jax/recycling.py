"""The memory of a state's arrays, for the arrays that a load puts in their place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import jax
from jax import Array

from adapters.deepfreeze.tensor import Bytes, memory_at


class Recycling:
    """Hands the memory of arrays on a CPU on: new memory would have to be cleared, and be there beside the old.

    By donation, as a training step does it with what it changes: who still has one of the arrays is
    told that it is deleted, and what somebody looks at in another way, as an array of numpy's or
    through a buffer, stays as it is.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Take arrays like those to come, and compile what hands them on."""
        here = {name: array for name, array in arrays.items() if _is_here(array)}
        self._names = tuple(here)
        self._hand_on = _compiled(tuple(_like(array) for array in here.values()))

    def take(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return arrays with the memory and the values of those on a CPU, which are deleted; nobody else has looked at them.

        They have these values once they are ready.
        """
        return dict(
            zip(self._names, self._hand_on([arrays[name] for name in self._names]), strict=True)
        )


def memory_of(array: Array) -> Bytes:
    """Return an array's memory, writable.

    It is for whoever is the only one to have the array, and as long as that is there.
    """
    return memory_at(array.unsafe_buffer_pointer(), array.nbytes)


def _like(array: Array) -> jax.ShapeDtypeStruct:
    """Return what is compiled for.

    Where the array lies belongs to it: else the next step is compiled anew for what comes back.
    """
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


@lru_cache
def _compiled(arrays: tuple[jax.ShapeDtypeStruct, ...]) -> jax.stages.Compiled:
    return jax.jit(lambda them: them, donate_argnums=0).lower(list(arrays)).compile()


def _is_here(array: Array) -> bool:
    return (
        array.size > 0
        and array.is_fully_addressable
        and [device.platform for device in array.devices()] == ["cpu"]
    )
