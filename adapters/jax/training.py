"""A training step as compiled pure functions."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

import workloads.optimizers
from adapters.jax.modules import Tree, forward
from workloads import Workload


class Training:
    """The functions of one workload. Every one returns new arrays; see `update` for those that it takes over."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.optimizer = _optimizer(workload)
        self.first_slots = jax.jit(self.optimizer.init)  # one program, instead of one for every shape
        self.gradients = jax.jit(self._gradients)
        self.update = jax.jit(self._update, donate_argnums=(0, 1, 2))  # in place, as training scripts have it

    def _gradients(
        self, weights: Tree, buffers: Tree, rng: Array, inputs: Array, targets: Array
    ) -> tuple[Array, Tree, Tree, Array]:
        """Return the loss, the gradients in float32, and the buffers and the random key after the batch."""
        rng, dropout = jax.random.split(jax.random.wrap_key_data(rng))

        def loss(weights: Tree) -> tuple[Array, Tree]:
            outputs, changed = forward(self.workload.model, weights, buffers, inputs, dropout)
            return _loss(self.workload, outputs, targets), changed

        (value, changed), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        gradients = jax.tree.map(lambda gradient: gradient.astype(jnp.float32), gradients)
        return value, gradients, changed, jax.random.key_data(rng)

    def _update(self, weights: Tree, master: Tree, slots: optax.OptState, gradients: Tree) -> tuple[Tree, Tree, optax.OptState]:
        """Return weights, master weights and slots after the step. `master` is empty where the weights are trained themselves."""
        trained = master or weights
        updates, slots = self.optimizer.update(gradients, slots, trained)
        trained = optax.apply_updates(trained, updates)
        if not master:
            return trained, {}, slots
        return rounded(trained), trained, slots


@functools.cache
def training(workload: Workload) -> Training:
    """Return the workload's functions, the same for every state: they are compiled once."""
    return Training(workload)


def rounded(master: Tree) -> Tree:
    """Return float32 weights in the precision that the model computes with."""
    return jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), master)


def _optimizer(workload: Workload) -> optax.GradientTransformation:
    match workload.optimizer:
        case workloads.optimizers.Sgd(learning_rate, momentum, weight_decay):
            return optax.chain(optax.add_decayed_weights(weight_decay), optax.sgd(learning_rate, momentum))
        case workloads.optimizers.Adam(learning_rate, beta1, beta2, epsilon):
            return optax.adam(learning_rate, beta1, beta2, epsilon)


def _loss(workload: Workload, outputs: Array, targets: Array) -> Array:
    if workload.loss == "mean-squared-error":
        return jnp.square(outputs - targets).mean()
    losses: Any = optax.softmax_cross_entropy_with_integer_labels(outputs.astype(jnp.float32), targets)
    return losses.mean()
