"""A training step as compiled functions."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import unflatten_dict
from jax import Array, lax

import workloads.optimizers
from adapters.jax.layout import Layout
from adapters.jax.modules import Tree, forward
from workloads import Workload


class Training:
    """The functions of one workload.

    Each returns new arrays. `update` deletes the arrays that it replaces.

    With a layout, the functions are programs over all ranks. Weights, slots and gradients have the
    shardings of the layout, and everything else is replicated. The shardings of the results are
    fixed, so that the results of a step can be the arguments of the next.
    """

    def __init__(self, workload: Workload, layout: Layout | None) -> None:
        self.workload = workload
        self.layout = layout
        self.optimizer = _optimizer(workload)
        shapes = _weight_shapes(workload)
        replicated = layout and layout.replicated
        weights = layout and layout.tree_of(shapes)
        slots = layout and layout.tree_of(jax.eval_shape(self.optimizer.init, shapes))
        master = weights if workload.master_weights else None
        # One program makes all slots, instead of one for every shape.
        self.first_slots = jax.jit(self.optimizer.init, out_shardings=slots)
        self.gradients = jax.jit(
            self._gradients, out_shardings=(replicated, weights, replicated, replicated)
        )
        # The new arrays get the memory of the old ones, as in training scripts.
        self.update = jax.jit(
            self._update, donate_argnums=(0, 1, 2), out_shardings=(weights, master, slots)
        )

    def _gradients(
        self, weights: Tree, buffers: Tree, rng: Array, inputs: Array, targets: Array
    ) -> tuple[Array, Tree, Tree, Array]:
        """Return the loss, float32 gradients, and the buffers and random key after the batch."""
        rng, dropout = jax.random.split(jax.random.wrap_key_data(rng))

        def loss(weights: Tree) -> tuple[Array, Tree]:
            whole = self._whole(weights)
            outputs, changed = forward(self.workload.model, whole, buffers, inputs, dropout)
            return _loss(self.workload, outputs, targets), changed

        (value, changed), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        gradients = jax.tree.map(lambda gradient: gradient.astype(jnp.float32), gradients)
        return value, gradients, changed, jax.random.key_data(rng)

    def _update(
        self, weights: Tree, master: Tree, slots: optax.OptState, gradients: Tree
    ) -> tuple[Tree, Tree, optax.OptState]:
        """Return weights, master weights and slots after the step.

        `master` is empty if the optimizer changes the weights themselves.
        """
        trained = master or weights
        updates, slots = self.optimizer.update(gradients, slots, trained)
        trained = optax.apply_updates(trained, updates)
        if not master:
            return trained, {}, slots
        return rounded(trained), trained, slots

    def _whole(self, weights: Tree) -> Tree:
        """Return weights that every rank gathers, so that it computes with its part of the batch.

        Otherwise XLA would choose what the ranks exchange.
        """
        if self.layout is None:
            return weights
        gathered: Tree = lax.with_sharding_constraint(weights, self.layout.replicated)
        return gathered


@functools.cache
def training(workload: Workload, layout: Layout | None) -> Training:
    """Return the functions of a workload.

    All states of a layout share them, so that each function is compiled once.
    """
    return Training(workload, layout)


def rounded(master: Tree) -> Tree:
    """Return float32 weights in the precision of the model."""
    return jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), master)


def _weight_shapes(workload: Workload) -> Tree:
    """Return the shapes and types of the weights."""
    flat = {
        variable.name: jax.ShapeDtypeStruct(variable.shape, jnp.float32)
        for variable in workload.parameters
    }
    shapes: Tree = unflatten_dict(flat, sep=".")
    return shapes


def _optimizer(workload: Workload) -> optax.GradientTransformation:
    match workload.optimizer:
        case workloads.optimizers.Sgd(learning_rate, momentum, weight_decay):
            return optax.chain(
                optax.add_decayed_weights(weight_decay), optax.sgd(learning_rate, momentum)
            )
        case workloads.optimizers.Adam(learning_rate, beta1, beta2, epsilon):
            return optax.adam(learning_rate, beta1, beta2, epsilon)


def _loss(workload: Workload, outputs: Array, targets: Array) -> Array:
    if workload.loss == "mean-squared-error":
        return jnp.square(outputs - targets).mean()
    losses: Any = optax.softmax_cross_entropy_with_integer_labels(
        outputs.astype(jnp.float32), targets
    )
    return losses.mean()
