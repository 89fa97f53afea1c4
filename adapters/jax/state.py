"""A JAX training state: immutable arrays in one mutable holder."""

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

SLOTS = {"momentum": "trace", "exp_avg": "mu", "exp_avg_sq": "nu"}  # canonical -> optax
STEP = "position/step"
ROLES = {  # of all parts of the tree
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

    The arrays are this rank's own or, of a sharded state, those of all ranks together, of which
    each has its parts. Nothing in the parts of `tree` is ever changed: a step or a load puts new
    ones in their place. A step gives the memory of the old weights and slots to the new ones,
    unless somebody still looks at it.
    """

    training: Training  # what computes with this state
    weights: Tree
    buffers: Tree
    master: Tree  # float32 copies of lower-precision weights, else empty
    optimizer: optax.OptState
    rng: Array  # the key's words, uint32
    step: int = 0
    gradients: Tree = field(default_factory=dict)
    loss: Array = field(default_factory=lambda: jnp.array(jnp.nan))
    _places: dict[PyTreeDef, dict[str, int]] = field(default_factory=dict, init=False, repr=False)

    @property
    def workload(self) -> Workload:
        """What is trained."""
        return self.training.workload

    def tree(self) -> dict[str, Any]:
        """Return the state as the nested structure that a script hands to Orbax.

        Its arrays are the state's own.
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
        """Hold the parts of a `tree` from now on."""
        for name in self.tree():
            setattr(self, name, tree[name])

    def tensors(self) -> dict[str, Array]:
        """Return everything as arrays under canonical names, for formats that hold nothing else."""
        leaves, structure = jax.tree.flatten(self.tree())
        return {name: leaves[place] for name, place in self._places_in(structure).items()} | {
            STEP: jnp.asarray(self.step)
        }

    def adopt_tensors(self, tensors: Mapping[str, Array]) -> None:
        """Hold the arrays of `tensors` from now on. Raises KeyError where one is missing."""
        leaves, structure = jax.tree.flatten(self.tree())
        for name, place in self._places_in(structure).items():
            leaves[place] = int(tensors[name]) if name == STEP else tensors[name]
        self.adopt(structure.unflatten(leaves))

    def _places_in(self, structure: PyTreeDef) -> dict[str, int]:
        """Return the places of the named leaves in a flat `tree`, looked up once: optax and flax walk it again and again."""
        if structure not in self._places:
            self._places[structure] = dict(
                self._named_leaves(structure.unflatten(range(structure.num_leaves)))
            )
        return self._places[structure]

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
        # in the model's order or, once a compiled function has returned it, the alphabet's
        flat = flatten_dict(tree, sep=".")
        return ((f"{prefix}/{variable.name}", flat[variable.name]) for variable in variables)


def new_state(workload: Workload, seed: int, strategy: OneRank) -> State:
    """Return a state at step 0.

    Where ranks have random keys of their own, these differ; the other first values do not.
    """

    def first(part: str, variables: tuple[Variable, ...]) -> Tree:
        return nested(
            {
                variable.name: strategy.put(part, workload.initial(variable.name, seed))
                for variable in variables
            }
        )

    functions = training(workload, strategy.layout)
    trained = first("weights", workload.parameters)
    # the size of a key of JAX's default generator
    words = np.random.SeedSequence((seed, strategy.stream)).generate_state(2)
    return State(
        functions,
        weights=rounded(trained) if workload.master_weights else trained,
        buffers=first("buffers", workload.buffers),
        master=trained if workload.master_weights else {},
        optimizer=strategy.pinned(functions.first_slots(trained)),
        rng=strategy.put("rng", words),
    )


def nested(flat: Mapping[str, Array]) -> Tree:
    """Return the arrays in dictionaries within dictionaries, one for each part of their dotted names."""
    tree: Tree = unflatten_dict(flat, sep=".")
    return tree
