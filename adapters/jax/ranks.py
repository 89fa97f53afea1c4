"""The ranks as one mesh of devices: averages over it, and a rank's arrays as its part of arrays that all ranks hold together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from adapters.jax.modules import Tree
from adapters.jax.state import LOCAL


class Ranks:
    """One device per rank. Training works on each rank's own arrays; only what crosses ranks is seen globally."""

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        mesh = Mesh(np.array(devices), ("rank",))
        self.size = len(devices)
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.divided = NamedSharding(mesh, PartitionSpec("rank"))  # along the first axis
        self._row = jax.jit(lambda tree: ravel_pytree(tree)[0][None])
        self._mean = jax.jit(lambda rows: rows.mean(0), out_shardings=self.replicated)
        self._like = jax.jit(lambda tree, flat: ravel_pytree(tree)[1](flat))

    def average(self, gradients: Tree) -> Tree:
        """Return the mean over the ranks: one flat all-reduce, the same in every step and every process."""
        row = self._row(gradients)
        rows = jax.make_array_from_single_device_arrays((self.size, row.shape[1]), self.divided, [row])
        averaged: Tree = self._like(gradients, self._mean(rows).addressable_data(0))
        return averaged

    def share(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return a state's tree in global arrays: replicated, and a rank's own ones as rows of an array with one row per rank."""
        return {part: jax.tree.map(self._stacked if part in LOCAL else self._replicated, content) for part, content in tree.items()}

    def own(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return this rank's part of what `share` returned."""
        return {part: jax.tree.map(_row if part in LOCAL else _replica, content) for part, content in tree.items()}

    def _replicated(self, value: Any) -> Any:
        if not isinstance(value, Array):
            return value
        return jax.make_array_from_single_device_arrays(value.shape, self.replicated, [value])

    def _stacked(self, value: Array) -> Array:
        # By way of numpy: an operation of JAX would be compiled for every shape, inside the clock of the first save.
        return jax.make_array_from_process_local_data(self.divided, np.asarray(value)[None], (self.size, *value.shape))


def _replica(value: Any) -> Any:
    return value.addressable_data(0) if isinstance(value, Array) else value


def _row(value: Array) -> Array:
    local = value.addressable_data(0)
    return jax.device_put(np.asarray(local)[0], local.sharding)
