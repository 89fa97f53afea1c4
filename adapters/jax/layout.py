"""Arrays that all ranks hold together: how they lie over the ranks' devices, and this rank's part of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

TreeT = TypeVar("TreeT")

RANK = "rank"  # the mesh's axis


@dataclass(frozen=True)
class Layout:
    """A mesh of all ranks, one device each."""

    mesh: Mesh

    @property
    def replicated(self) -> NamedSharding:
        """The whole array on every rank."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def divided(self) -> NamedSharding:
        """Equal parts along the first axis."""
        return NamedSharding(self.mesh, PartitionSpec(RANK))

    def of(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return how a sharded state's array lies: in equal parts along the first axis that has them, else replicated."""
        for axis, length in enumerate(shape):
            if length % self.mesh.size == 0:
                return NamedSharding(self.mesh, PartitionSpec(*axis * [None], RANK))
        return self.replicated

    def tree_of(self, tree: Any) -> Any:
        """Return `of` for everything in a tree that has a shape."""
        return jax.tree.map(lambda array: self.of(array.shape), tree)


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """Return the ranks' devices, in the order of the ranks."""
    return Mesh(np.array(devices), (RANK,))


def own_parts(tree: TreeT) -> TreeT:
    """Return this rank's parts of the arrays in a tree, without a copy.

    An array of this rank alone is its own part.
    """
    parts: TreeT = jax.tree.map(
        lambda value: value.addressable_data(0) if isinstance(value, Array) else value, tree
    )
    return parts


def same_memory(own: Array) -> Array:
    """Return another array with the memory of this one, which is a rank's own part."""
    return jax.make_array_from_single_device_arrays(own.shape, own.sharding, [own])


def with_own_part(array: Array, values: Any) -> Array:
    """Return an array like `array` on the same devices, of which this rank's part is `values`, in any shape."""
    own = array.addressable_data(0)
    part = jax.device_put(values.reshape(own.shape), own.sharding)
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [part])
