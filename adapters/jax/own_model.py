"""A model of the user's own as a JAX state: what `make` may return, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adapters.base import UnusableModel
from adapters.jax.own_state import OwnState, Step, path_of
from adapters.jax.strategies import OneRank
from adapters.shared.own_models import in_words, require_step

_FORM = "it must return a pytree and a step function, step(tree, number) -> tree"


def new_state(made: object, strategy: OneRank) -> OwnState:
    """Return the state of what a user's `make` returned, before its first step.

    `made` is a pytree of arrays and numbers, and the function that takes a whole step of training.
    Raise UnusableModel where it cannot be measured.
    """
    tree, step = _taken_apart(made)
    named_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    if not named_leaves:
        raise UnusableModel("the pytree that it returns holds no arrays")
    leaves = {}
    for path, leaf in named_leaves:
        name = path_of(path)
        if name in leaves:
            raise UnusableModel(f"two leaves of the pytree have the name {name!r}")
        leaves[name] = _placed(name, leaf, strategy)
    if not any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves.values()):
        raise UnusableModel("the pytree that it returns holds no array of floating-point numbers")
    state = OwnState(step, leaves, structure)
    if "weights" not in state.tree():
        raise UnusableModel(
            "the pytree that it returns has no weights, because every array is below a name of "
            f"something else, such as {next(iter(leaves))!r}; put the weights below 'params' or "
            "'weights', and outside of such a name"
        )
    return state


def _taken_apart(made: object) -> tuple[Any, Step]:
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise UnusableModel(
            f"{_FORM}, because JAX keeps no optimizer that could step by itself; it returned "
            f"{in_words(made)}"
        )
    tree, step = made
    if callable(tree) and not isinstance(tree, Mapping) and jax.tree.leaves(tree) == [tree]:
        raise UnusableModel(f"{_FORM}, in this order; the first value is a function")
    require_step(step, "second", "the pytree")
    return tree, step


def _placed(name: str, leaf: Any, strategy: OneRank) -> Array:
    """Return a leaf as an array that the state alone uses, on the rank's device.

    The user's own array may be deleted otherwise, by a step or a load that reuses its memory.
    """
    if not isinstance(leaf, Array | np.ndarray | np.generic | bool | int | float | complex):
        raise UnusableModel(
            f"{name} is a {type(leaf).__name__}, and only arrays and numbers can be saved; keep it "
            "out of the pytree, for instance in the step function"
        )
    if isinstance(leaf, np.ndarray | np.generic) and not _is_numeric(leaf.dtype):
        raise UnusableModel(
            f"{name} is an array of {leaf.dtype}, and only arrays of numbers can be saved"
        )
    if not isinstance(leaf, Array):
        leaf = jnp.asarray(leaf)
    _require_place(name, leaf, strategy)
    copied = jnp.copy(leaf)
    return copied if strategy.layout else strategy.pinned(copied)


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    return jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)


def _require_place(name: str, array: Array, strategy: OneRank) -> None:
    """Refuse an array that does not lie on the devices on which the ranks' strategy has it."""
    devices = array.sharding.device_set
    wanted = strategy.device.platform
    for device in devices:
        if device.platform != wanted:
            raise UnusableModel(
                f"{name} is on {device.platform}, and the run is on {wanted}; make it there, or "
                "give another --device"
            )
    if strategy.layout is None and len(devices) > 1:
        raise UnusableModel(
            f"{name} lies on {len(devices)} devices; give --strategy sharded for a state that the "
            "ranks hold together"
        )
    if strategy.layout is not None and len(devices) != strategy.world:
        raise UnusableModel(
            f"with --strategy sharded every array must lie on a mesh of all {strategy.world} "
            f"devices, and {name} lies on {len(devices)}"
        )
