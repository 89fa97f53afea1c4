"""The strategies by which ranks train together.

A strategy says which arrays a rank holds, and how the ranks combine their arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

import adapters.base
from adapters.base import Place, Placement, RankLocal, Shard
from adapters.jax.layout import Layout, mesh_of, own_parts
from adapters.jax.modules import Tree
from workloads import Batch

TreeT = TypeVar("TreeT")

# the parts of a state's tree that may differ from rank to rank
LOCAL = ("buffers", "rng")


class OneRank:
    """Training on one rank, which has the whole state on its device.

    The strategies for several ranks override what differs.
    """

    # the layout of a state that all ranks hold together
    layout: Layout | None = None
    # the parts of the tree that differ from rank to rank
    local: tuple[str, ...] = LOCAL

    def __init__(self, place: Place, devices: Sequence[jax.Device]) -> None:
        """Take the place and the devices of all ranks, in the order of the ranks."""
        self.rank = place.rank
        self.world = place.world
        # A process that trains alone is given its own device only, whatever rank it has.
        self.device = devices[place.rank if place.world > 1 else 0]

    @property
    def stream(self) -> int:
        """The number of the stream from which this rank draws a seed's random numbers."""
        return self.rank

    def put(self, part: str, values: NDArray[Any]) -> Array:
        """Return an array with these values for a part of the state's tree."""
        return jax.device_put(values, self.device)

    def pinned(self, tree: TreeT) -> TreeT:
        """Return arrays that are bound to this rank's device.

        Otherwise JAX compiles a program again when it gets arrays that are bound.
        """
        return jax.device_put(tree, self.device)

    def batch(self, batch: Batch) -> tuple[Array, Array]:
        """Return this rank's inputs and targets on its device."""
        inputs, targets = jax.device_put((batch.inputs, batch.targets), self.device)
        return inputs, targets

    def average(self, gradients: Tree) -> Tree:
        """Return the mean of all ranks' gradients."""
        return gradients

    def placement(self, part: str, array: Array) -> Placement:
        """Return the placement of an array in a part of the state's tree."""
        return adapters.base.Replicated()

    def shared(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return a state's tree with arrays that all ranks hold together.

        An array that differs from rank to rank gets one row for every rank.
        """
        shared = {}
        for part, values in tree.items():
            share = self._stacked if part in self.local else self._shared
            shared[part] = jax.tree.map(share, values)
        return shared

    def target(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return a tree like that of `shared`, whose arrays tell Orbax the places of the values.

        An array that differs from rank to rank has no place. Orbax reads it into host memory as it
        is stored, with one row for each rank that saved it.
        """
        target = {}
        for part, values in tree.items():
            place = _placeless if part in self.local else self._shared
            target[part] = jax.tree.map(place, values)
        return target

    def own(self, restored: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
        """Return the state's new tree, given its old tree and the values restored for its `target`.

        If another number of ranks saved, the arrays that differ from rank to rank stay as they are.
        """
        own = {}
        for part, values in restored.items():
            is_local = part in self.local
            own[part] = (
                jax.tree.map(self._row, values, tree[part]) if is_local else self._own(values)
            )
        return own

    def _shared(self, value: Any) -> Any:
        return value

    def _own(self, values: Any) -> Any:
        return values

    def _stacked(self, value: Array) -> Array:
        return value

    def _row(self, stored: NDArray[Any], now: Array) -> Array:
        return jax.device_put(stored, now.sharding) if stored.shape == now.shape else now


class Replicated(OneRank):
    """Every rank has the whole state and computes with its part of the batch.

    The ranks exchange gradients alone. Batch-norm statistics and random keys differ from rank to
    rank.
    """

    def __init__(self, place: Place, devices: Sequence[jax.Device]) -> None:
        super().__init__(place, devices)
        self._mesh = Layout(mesh_of(devices))
        self._flat = jax.jit(lambda tree: ravel_pytree(tree)[0][None])
        self._mean = jax.jit(lambda rows: rows.mean(0), out_shardings=self._mesh.replicated)
        self._like = jax.jit(lambda tree, flat: ravel_pytree(tree)[1](flat))

    def average(self, gradients: Tree) -> Tree:
        """Return the mean of all ranks' gradients.

        One flat all-reduce adds the same numbers in the same order in every step and process.
        """
        row = self._flat(gradients)
        rows = jax.make_array_from_single_device_arrays(
            (self.world, row.shape[1]), self._mesh.divided, [row]
        )
        averaged: Tree = self._like(gradients, self._mean(rows).addressable_data(0))
        return averaged

    def placement(self, part: str, array: Array) -> Placement:
        return RankLocal() if part in self.local else adapters.base.Replicated()

    def _shared(self, value: Any) -> Any:
        if not isinstance(value, Array):
            return value
        return jax.make_array_from_single_device_arrays(value.shape, self._mesh.replicated, [value])

    def _own(self, values: Any) -> Any:
        return own_parts(values)

    def _stacked(self, value: Array) -> Array:
        # numpy adds the axis. JAX would compile that for every shape while the first save is timed.
        return jax.make_array_from_process_local_data(
            self._mesh.divided, np.asarray(value)[None], (self.world, *value.shape)
        )

    def _row(self, stored: NDArray[Any], now: Array) -> Array:
        if stored.shape != (self.world, *now.shape):
            return now
        return jax.device_put(stored[self.rank], now.sharding)


class Sharded(OneRank):
    """One program over all ranks, which hold parts of weights, slots and batch.

    XLA inserts the collectives. Every rank gathers the weights for its part of the batch, and gets
    its parts of the averaged gradients, so that the update needs nothing from other ranks. The
    number of ranks changes the rounding of sums alone. Dropout draws the mask of the whole batch
    from one random key, and batch norm takes the statistics of the whole batch. Both are
    replicated, so no array differs from rank to rank.
    """

    layout: Layout
    local = ()

    def __init__(self, place: Place, devices: Sequence[jax.Device]) -> None:
        super().__init__(place, devices)
        self.layout = Layout(mesh_of(devices))

    @property
    def stream(self) -> int:
        """The number of the stream from which all ranks draw a seed's random numbers."""
        return 0

    def put(self, part: str, values: NDArray[Any]) -> Array:
        """Return an array with these values, in parts if they are weights, or else replicated."""
        sharding = self.layout.replicated if part in LOCAL else self.layout.of(values.shape)
        return jax.make_array_from_callback(
            values.shape, sharding, lambda index: values[index].copy()
        )

    def pinned(self, tree: TreeT) -> TreeT:
        return tree

    def batch(self, batch: Batch) -> tuple[Array, Array]:
        return self._whole(batch.inputs), self._whole(batch.targets)

    def placement(self, part: str, array: Array) -> Placement:
        if array.is_fully_replicated:
            return adapters.base.Replicated()
        index = array.addressable_shards[0].index
        return Shard(array.shape, tuple(along.start or 0 for along in index))

    def _whole(self, examples: NDArray[Any]) -> Array:
        shape = (self.world * len(examples), *examples.shape[1:])
        return jax.make_array_from_process_local_data(self.layout.divided, examples, shape)


STRATEGIES: dict[str, type[OneRank]] = {"replicated": Replicated, "sharded": Sharded}


def strategy_for(place: Place) -> type[OneRank]:
    """Return the strategy of a place.

    Raises ValueError if several ranks have no known strategy.
    """
    if place.world == 1:
        return OneRank
    if place.strategy not in STRATEGIES:
        raise ValueError(
            f"{place.world} ranks need one of the strategies {', '.join(STRATEGIES)}, "
            f"not {place.strategy!r}"
        )
    return STRATEGIES[place.strategy]


def _placeless(value: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)
