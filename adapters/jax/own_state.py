"""A JAX training state that the user's own step changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import PyTreeDef

from adapters.base import UnusableModel
from adapters.jax.state import STEP, State
from adapters.jax.strategies import OneRank
from adapters.shared.own_models import in_words
from workloads import Role

Step = Callable[[Any, int], Any]

# the part of the state to which a leaf belongs, by a name in its path
PARTS = {
    "params": "weights",
    "weights": "weights",
    "batch_stats": "buffers",
    "buffers": "buffers",
    "opt_state": "optimizer",
    "optimizer": "optimizer",
    "rng": "rng",
    "rngs": "rng",
    # Trainers of flax count the optimizer's steps beside its slots.
    "step": "optimizer",
}


class Slot(NamedTuple):
    """The place of one leaf of the user's pytree in the state.

    `key` is the kind of random key that the leaf is. It is None for other arrays.
    """

    part: str
    name: str
    key: Any


class OwnState(State):
    """The leaves of a user's pytree by part and name, and the step that trains it.

    A random key is kept as its words, which are an ordinary array.
    """

    # Nobody knows which arrays the user's step deletes.
    updated_roles = frozenset(Role)

    def __init__(self, step: Step, leaves: Mapping[str, Array], structure: PyTreeDef) -> None:
        """Take the leaves by their paths in a pytree of this structure, in its order."""
        super().__init__()
        self.loss = jnp.array(0.0)  # The user's step returns none.
        self._take = step
        self._has_stepped = False
        self._structure = structure
        self._slots = _slots(leaves)
        self._keep(leaves.values())

    def tree(self) -> dict[str, Any]:
        return {**self._parts, "step": self.step}

    def adopt(self, tree: Mapping[str, Any]) -> None:
        self._parts = {part: tree[part] for part in self._parts}
        self.step = tree["step"]

    def find_gradients(self, strategy: OneRank) -> None:
        """Do nothing, because the user's step is whole."""

    def take_step(self, strategy: OneRank) -> None:
        """Take the user's step. Raise UnusableModel where it returns another pytree."""
        changed = self._take(self._users_tree(), self.step)
        leaves, structure = jax.tree.flatten(changed)
        if structure != self._structure:
            raise UnusableModel(
                "the step function must return a pytree like the one that it was given"
                f"{self._difference(changed)}"
            )
        before = None if self._has_stepped else self.tensors()
        self._keep(jnp.asarray(leaf) for leaf in leaves)
        if before is not None:
            # One step is enough to tell, and later ones are timed.
            self._require_same_kinds(before)
            self._has_stepped = True
        self.step += 1

    def _named_leaves(self, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for slot in self._slots:
            yield f"{slot.part}/{slot.name}", tree[slot.part][slot.name]
        yield STEP, tree["step"]

    def _users_tree(self) -> Any:
        leaves = []
        for slot in self._slots:
            array = self._parts[slot.part][slot.name]
            is_key = slot.key is not None
            leaves.append(jax.random.wrap_key_data(array, impl=slot.key) if is_key else array)
        return self._structure.unflatten(leaves)

    def _keep(self, leaves: Any) -> None:
        """Keep the leaves of a user's pytree, in its order."""
        parts: dict[str, dict[str, Array]] = {}
        for slot, leaf in zip(self._slots, leaves, strict=True):
            array = leaf if slot.key is None else jax.random.key_data(leaf)
            # A weak type is lost in a file, and training would go on with other types.
            strong = jnp.asarray(array, dtype=array.dtype) if array.weak_type else array
            parts.setdefault(slot.part, {})[slot.name] = strong
        self._parts = parts

    def _require_same_kinds(self, before: Mapping[str, Array]) -> None:
        for name, array in self.tensors().items():
            if (array.shape, array.dtype) != (before[name].shape, before[name].dtype):
                raise UnusableModel(
                    f"the step function must keep shapes and types, and it changes {name} from "
                    f"{_kind(before[name])} to {_kind(array)}"
                )

    def _difference(self, changed: Any) -> str:
        """Return in words how a pytree differs from the user's."""
        if isinstance(changed, tuple) and changed:
            starts_with_the_tree = jax.tree.structure(changed[0]) == self._structure
            if starts_with_the_tree:
                return f" alone; it returned {in_words(changed)}"
        now = {path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(changed)}
        before = {slot.name for slot in self._slots}
        if not before & now:
            return f"; it returned {in_words(changed)}"
        if before - now:
            return f"; the one that it returned lacks {min(before - now)!r}"
        if now - before:
            return f"; the one that it returned also has {min(now - before)!r}"
        return "; its leaves have the same paths, and other types or fixed fields around them"


def path_of(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf as one name, such as "params.Dense_0.kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _kind(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _slots(leaves: Mapping[str, Array]) -> list[Slot]:
    """Return the places of the leaves, of which the outermost known names decide.

    The slots of an optimizer may have the names of weights within. Where all weights would be
    missing, such a name is around a whole training state, and the known names in it decide.
    """
    slots = [_slot(name, leaf, 0) for name, leaf in leaves.items()]
    if any(slot.part == "weights" for slot in slots):
        return slots
    return [_slot(name, leaf, 1) for name, leaf in leaves.items()]


def _slot(name: str, leaf: Array, level: int) -> Slot:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    kind = jax.random.key_impl(leaf) if is_key else None
    return Slot("rng" if is_key else _part(name, level), name, kind)


def _part(name: str, level: int) -> str:
    """Return the part of the state that a path names; without a known name, it is a weight.

    `level` is the number of known names to pass over where more follow.
    """
    known = [PARTS[key] for key in name.split(".") if key in PARTS]
    return known[min(level, len(known) - 1)] if known else "weights"
