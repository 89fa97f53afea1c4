"""Arrays that all ranks hold together, their layout over the ranks, and this rank's part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

TreeT = TypeVar("TreeT")

RANK = "rank"  # the axis of the mesh


@dataclass(frozen=True)
class Layout:
    """A mesh of all ranks, each with one device."""

    mesh: Mesh

    @property
    def replicated(self) -> NamedSharding:
        """The sharding with the whole array on every rank."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def divided(self) -> NamedSharding:
        """The sharding in equal parts along the first axis."""
        return NamedSharding(self.mesh, PartitionSpec(RANK))

    def of(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding of an array of a sharded state.

        It is in equal parts along the first axis that the ranks divide evenly, or else replicated.
        """
        for axis, length in enumerate(shape):
            if length % self.mesh.size == 0:
                return NamedSharding(self.mesh, PartitionSpec(*axis * [None], RANK))
        return self.replicated

    def tree_of(self, tree: Any) -> Any:
        """Return the shardings of the arrays in a tree."""
        return jax.tree.map(lambda array: self.of(array.shape), tree)


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """Return a mesh of the ranks' devices, which are in the order of the ranks."""
    return Mesh(np.array(devices), (RANK,))


def own_parts(tree: TreeT) -> TreeT:
    """Return this rank's parts of the arrays in a tree, without a copy.

    An array that this rank alone holds is returned whole.
    """
    parts: TreeT = jax.tree.map(_own_part, tree)
    return parts


def same_memory(own: Array) -> Array:
    """Return another array object with the memory of a rank's own part."""
    return jax.make_array_from_single_device_arrays(own.shape, own.sharding, [own])


def with_own_part(array: Array, values: Any) -> Array:
    """Return an array like `array` on the same devices, in which this rank's part is `values`.

    The shape of `values` does not matter.
    """
    own = array.addressable_data(0)
    part = jax.device_put(values.reshape(own.shape), own.sharding)
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [part])


def _own_part(value: Any) -> Any:
    return value.addressable_data(0) if isinstance(value, Array) else value
