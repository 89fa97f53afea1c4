"""How the ranks train together: which arrays a rank has, and how those of all ranks come together."""

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

LOCAL = ("buffers", "rng")  # the parts of a state's tree that a rank may have of its own


class OneRank:
    """A rank on its own, with the whole state on its device.

    The strategies for several ranks say what is different there.
    """

    layout: Layout | None = None  # of a state that all ranks hold together
    local: tuple[str, ...] = LOCAL  # the parts that differ from rank to rank

    def __init__(self, place: Place, devices: Sequence[jax.Device]) -> None:
        """Take the place and the devices of all ranks, in the order of the ranks."""
        self.rank = place.rank
        self.world = place.world
        self.device = devices[place.rank]

    @property
    def stream(self) -> int:
        """Which of a seed's streams of random numbers this rank draws from."""
        return self.rank

    def put(self, part: str, values: NDArray[Any]) -> Array:
        """Return an array of the state's part `part` with these values, which all ranks have, or all that have one of their own."""
        return jax.device_put(values, self.device)

    def pinned(self, tree: TreeT) -> TreeT:
        """Return arrays bound to this rank's device: programs are compiled anew for those that only happen to be there."""
        return jax.device_put(tree, self.device)

    def batch(self, batch: Batch) -> tuple[Array, Array]:
        """Return the inputs and targets to train on, given this rank's part of the batch."""
        inputs, targets = jax.device_put((batch.inputs, batch.targets), self.device)
        return inputs, targets

    def average(self, gradients: Tree) -> Tree:
        """Return the mean of what the ranks' `gradients` calls have returned."""
        return gradients

    def placement(self, part: str, array: Array) -> Placement:
        """Return what the array of the state's part `part` is to this rank."""
        return adapters.base.Replicated()

    def shared(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return a state's tree in arrays that all ranks hold together, those of a rank alone with one row for every rank."""
        return {
            part: jax.tree.map(self._stacked if part in self.local else self._shared, values)
            for part, values in tree.items()
        }

    def target(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return a tree like that of `shared` for Orbax to restore: its arrays tell where the values go.

        Those of a rank alone tell no place: Orbax is to read them into host memory as they are
        stored, one row for each of the ranks that saved them, however many these were.
        """
        return {
            part: jax.tree.map(_placeless if part in self.local else self._shared, values)
            for part, values in tree.items()
        }

    def own(self, restored: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
        """Return a state's tree given what was restored for the `target` of the tree that the state has had.

        Where another number of ranks saved, what a rank has of its own stays as it was.
        """
        return {
            part: jax.tree.map(self._row, values, tree[part])
            if part in self.local
            else self._own(values)
            for part, values in restored.items()
        }

    def _shared(self, value: Any) -> Any:
        return value

    def _own(self, values: Any) -> Any:
        return values

    def _stacked(self, value: Array) -> Array:
        return value

    def _row(self, stored: NDArray[Any], now: Array) -> Array:
        return jax.device_put(stored, now.sharding) if stored.shape == now.shape else now


class Replicated(OneRank):
    """Every rank has the whole state in arrays of its own, and computes with its part of the batch; only gradients cross ranks.

    Batch-norm statistics and random keys differ from rank to rank.
    """

    def __init__(self, place: Place, devices: Sequence[jax.Device]) -> None:
        """Take the place and the devices of all ranks, in the order of the ranks."""
        super().__init__(place, devices)
        self._mesh = Layout(mesh_of(devices))
        self._flat = jax.jit(lambda tree: ravel_pytree(tree)[0][None])
        self._mean = jax.jit(lambda rows: rows.mean(0), out_shardings=self._mesh.replicated)
        self._like = jax.jit(lambda tree, flat: ravel_pytree(tree)[1](flat))

    def average(self, gradients: Tree) -> Tree:
        """Return the mean over the ranks: one flat all-reduce, the same in every step and every process."""
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
        # By way of numpy: an operation of JAX would be compiled for every shape, inside the clock
        # of the first save.
        return jax.make_array_from_process_local_data(
            self._mesh.divided, np.asarray(value)[None], (self.world, *value.shape)
        )

    def _row(self, stored: NDArray[Any], now: Array) -> Array:
        return (
            jax.device_put(stored[self.rank], now.sharding)
            if stored.shape == (self.world, *now.shape)
            else now
        )


class Sharded(OneRank):
    """One program over all ranks: each has a part of the weights and slots and of the batch, and XLA inserts the collectives.

    Every rank gathers the weights for its part of the batch; the gradients come averaged, each rank
    its parts, so that the update needs nothing from the others. What the program computes does not
    depend on the number of ranks, but for the rounding of sums. Dropout draws its mask from one
    random key for the whole batch, and batch norm takes the statistics of the whole batch: both are
    replicated, and nothing is a rank's own.
    """

    layout: Layout
    local = ()

    def __init__(self, place: Place, devices: Sequence[jax.Device]) -> None:
        """Take the place and the devices of all ranks, in the order of the ranks."""
        super().__init__(place, devices)
        self.layout = Layout(mesh_of(devices))

    @property
    def stream(self) -> int:
        """Which of a seed's streams of random numbers all ranks draw from."""
        return 0

    def put(self, part: str, values: NDArray[Any]) -> Array:
        """Return an array with these values: weights in parts, the others replicated."""
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
    """Return the place's strategy.

    Raises ValueError where several ranks are to train in a way that there is not.
    """
    if place.world == 1:
        return OneRank
    if place.strategy not in STRATEGIES:
        raise ValueError(
            f"{place.world} ranks of JAX train by one of {', '.join(STRATEGIES)}, not by {place.strategy!r}"
        )
    return STRATEGIES[place.strategy]


def _placeless(value: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)
