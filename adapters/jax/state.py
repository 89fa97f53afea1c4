"""A JAX training state, which holds immutable arrays in one mutable object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
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
from workloads import Batch, Role, Workload
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


class State(ABC):
    """Everything that training changes, as parts of one tree, and the number of steps taken.

    The parts of `tree` never change, because a step or a load puts new ones in their place. A step
    may give the memory of the old arrays to the new ones, unless something else still uses it.
    """

    # The roles whose arrays a step of the optimizer may delete.
    updated_roles: frozenset[Role]

    def __init__(self) -> None:
        self.step = 0
        self.gradients: Tree = {}
        self.loss = jnp.array(jnp.nan)
        self._indices: dict[PyTreeDef, dict[str, int]] = {}

    @abstractmethod
    def tree(self) -> dict[str, Any]:
        """Return the state as the nested dictionary that a script gives to Orbax.

        Its arrays are not copies.
        """

    @abstractmethod
    def adopt(self, tree: Mapping[str, Any]) -> None:
        """Replace the arrays of the state by those of a `tree`."""

    @abstractmethod
    def find_gradients(self, strategy: OneRank) -> None:
        """Run the forward and the backward pass of the next step, where they are of their own."""

    @abstractmethod
    def take_step(self, strategy: OneRank) -> None:
        """Average the gradients over the ranks, and take a step of the optimizer."""

    @abstractmethod
    def _named_leaves(self, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the leaves of a `tree` under canonical names."""

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


class WorkloadState(State):
    """Weights, buffers, optimizer and random key of a workload of this project.

    The arrays belong to this rank alone. The arrays of a sharded state belong to all ranks
    together, and each rank holds its parts.
    """

    updated_roles = frozenset({Role.WEIGHT, Role.OPTIMIZER})

    def __init__(
        self,
        training: Training,
        weights: Tree,
        buffers: Tree,
        master: Tree,
        optimizer: optax.OptState,
        rng: Array,
    ) -> None:
        """Take the compiled functions that compute with this state, and its parts.

        `master` are float32 copies of weights in lower precision, or empty. `rng` are the words of
        the key, uint32.
        """
        super().__init__()
        self.training = training
        self.weights = weights
        self.buffers = buffers
        self.master = master
        self.optimizer = optimizer
        self.rng = rng

    @property
    def workload(self) -> Workload:
        """The workload that is trained."""
        return self.training.workload

    def tree(self) -> dict[str, Any]:
        parts = {
            "weights": self.weights,
            "buffers": self.buffers,
            "optimizer": self.optimizer,
            "rng": self.rng,
            "step": self.step,
        }
        return parts | {"master": self.master} if self.workload.master_weights else parts

    def adopt(self, tree: Mapping[str, Any]) -> None:
        for name in self.tree():
            setattr(self, name, tree[name])

    def find_gradients(self, strategy: OneRank) -> None:
        batch = self.workload.batch(self.step, strategy.rank, strategy.world)
        self.find_gradients_of(batch, strategy)

    def find_gradients_of(self, batch: Batch, strategy: OneRank) -> None:
        """Run the forward and the backward pass on a batch."""
        inputs, targets = strategy.batch(batch)
        self.loss, self.gradients, self.buffers, self.rng = self.training.gradients(
            self.weights, self.buffers, self.rng, inputs, targets
        )

    def take_step(self, strategy: OneRank) -> None:
        self.take_step_with(strategy.average(self.gradients))

    def take_step_with(self, gradients: Tree) -> None:
        """Take a step of the optimizer with these gradients."""
        self.weights, self.master, self.optimizer = self.training.update(
            self.weights, self.master, self.optimizer, gradients
        )
        self.step += 1

    def _named_leaves(self, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
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


def new_state(workload: Workload, seed: int, strategy: OneRank) -> WorkloadState:
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
    return WorkloadState(
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
