"""A JAX training state, which holds immutable arrays in one mutable object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.tree_util import PyTreeDef

from adapters.jax.modules import Tree
from adapters.jax.strategies import OneRank
from adapters.jax.training import Training, rounded, training
from workloads import Role, Workload
from workloads.layers import Variable

# optax's name of each slot by its canonical name
SLOTS = {"momentum": "trace", "exp_avg": "mu", "exp_avg_sq": "nu"}
STEP = "position/step"
# the role of each part of the tree
ROLES = {
    "weights": Role.WEIGHT,
    "buffers": Role.BUFFER,
    "master": Role.OPTIMIZER,
    "optimizer": Role.OPTIMIZER,
    "rng": Role.RNG,
    "step": Role.POSITION,
}


@dataclass
class State:
    """Weights, buffers, optimizer, random key and position in the data.

    The arrays belong to this rank alone. The arrays of a sharded state belong to all ranks
    together, and each rank holds its parts. The parts of `tree` never change, because a step or a
    load puts new ones in their place. A step gives the memory of the old weights and slots to the
    new ones, unless something else still uses it.
    """

    training: Training  # the compiled functions that compute with this state
    weights: Tree
    buffers: Tree
    master: Tree  # float32 copies of weights in lower precision, or empty
    optimizer: optax.OptState
    rng: Array  # the words of the key, uint32
    step: int = 0
    gradients: Tree = field(default_factory=dict)
    loss: Array = field(default_factory=lambda: jnp.array(jnp.nan))
    _indices: dict[PyTreeDef, dict[str, int]] = field(default_factory=dict, init=False, repr=False)

    @property
    def workload(self) -> Workload:
        """The workload that is trained."""
        return self.training.workload

    def tree(self) -> dict[str, Any]:
        """Return the state as the nested dictionary that a script gives to Orbax.

        Its arrays are not copies.
        """
        parts = {
            "weights": self.weights,
            "buffers": self.buffers,
            "optimizer": self.optimizer,
            "rng": self.rng,
            "step": self.step,
        }
        return parts | {"master": self.master} if self.workload.master_weights else parts

    def adopt(self, tree: Mapping[str, Any]) -> None:
        """Replace the arrays of the state by those of a `tree`."""
        for name in self.tree():
            setattr(self, name, tree[name])

    def tensors(self) -> dict[str, Array]:
        """Return the state as arrays under canonical names."""
        leaves, structure = jax.tree.flatten(self.tree())
        tensors = {name: leaves[index] for name, index in self._indices_in(structure).items()}
        return tensors | {STEP: jnp.asarray(self.step)}

    def adopt_tensors(self, tensors: Mapping[str, Array]) -> None:
        """Replace the arrays of the state by those of `tensors`.

        Raises KeyError if one is missing.
        """
        leaves, structure = jax.tree.flatten(self.tree())
        for name, index in self._indices_in(structure).items():
            leaves[index] = int(tensors[name]) if name == STEP else tensors[name]
        self.adopt(structure.unflatten(leaves))

    def _indices_in(self, structure: PyTreeDef) -> dict[str, int]:
        """Return the index of every canonical name in the leaves of a flattened `tree`.

        They are kept, because finding them makes optax and flax walk over the tree many times.
        """
        if structure not in self._indices:
            numbered = structure.unflatten(range(structure.num_leaves))
            self._indices[structure] = dict(self._named_leaves(numbered))
        return self._indices[structure]

    def _named_leaves(self, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the leaves of a `tree` under canonical names."""
        yield from self._named("weights", tree["weights"], self.workload.parameters)
        yield from self._named("buffers", tree["buffers"], self.workload.buffers)
        if self.workload.master_weights:
            yield from self._named("optimizer/master", tree["master"], self.workload.parameters)
        for slot in self.workload.optimizer.slots:
            values = optax.tree_utils.tree_get(tree["optimizer"], SLOTS[slot])
            yield from self._named(f"optimizer/{slot}", values, self.workload.parameters)
        yield from self._counters(tree["optimizer"])
        yield "rng/key", tree["rng"]
        yield STEP, tree["step"]

    @staticmethod
    def _counters(optimizer: optax.OptState) -> Iterator[tuple[str, Any]]:
        count = optax.tree_utils.tree_get(optimizer, "count")
        if count is not None:
            yield "optimizer/count", count

    @staticmethod
    def _named(
        prefix: str, tree: Tree, variables: tuple[Variable, ...]
    ) -> Iterator[tuple[str, Any]]:
        # A compiled function returns the leaves in alphabetical order, so the order of the model is
        # taken from the variables.
        flat = flatten_dict(tree, sep=".")
        return ((f"{prefix}/{variable.name}", flat[variable.name]) for variable in variables)


def new_state(workload: Workload, seed: int, strategy: OneRank) -> State:
    """Return a state at step 0.

    The ranks start with the same values, but for their random keys if each has its own.
    """

    def first(part: str, variables: tuple[Variable, ...]) -> Tree:
        flat = {}
        for variable in variables:
            flat[variable.name] = strategy.put(part, workload.initial(variable.name, seed))
        return nested(flat)

    functions = training(workload, strategy.layout)
    trained = first("weights", workload.parameters)
    # A key of JAX's default generator has two words.
    words = np.random.SeedSequence((seed, strategy.stream)).generate_state(2)
    return State(
        training=functions,
        weights=rounded(trained) if workload.master_weights else trained,
        buffers=first("buffers", workload.buffers),
        master=trained if workload.master_weights else {},
        optimizer=strategy.pinned(functions.first_slots(trained)),
        rng=strategy.put("rng", words),
    )


def nested(flat: Mapping[str, Array]) -> Tree:
    """Return arrays as nested dictionaries, with a level for each part of their dotted names."""
    tree: Tree = unflatten_dict(flat, sep=".")
    return tree
