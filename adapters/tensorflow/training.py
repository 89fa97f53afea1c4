"""The part of a TensorFlow state that trains it: where its gradients come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from adapters.base import Place, UnusableModel
from adapters.shared.own_models import in_words
from adapters.shared.random_gradients import gradients_like
from workloads import Batch, Workload

CHANNELS_LAST = (0, 2, 3, 1)

# A parameter that the loss does not depend on has none.
Gradients = list[tf.Tensor | None]


class Training(Protocol):
    """The source of gradients."""

    def backward(self, model: keras.Model, step: int) -> tuple[tf.Tensor, Gradients]:
        """Return the loss of a step, and the gradients of the trainable variables."""


class WorkloadTraining:
    """Training on the batches and with the loss of a workload."""

    def __init__(self, workload: Workload, place: Place) -> None:
        self.workload = workload
        self._place = place

    def backward(self, model: keras.Model, step: int) -> tuple[tf.Tensor, Gradients]:
        batch = self.workload.batch(step, self._place.rank, self._place.world)
        return self.backward_on(model, batch)

    def backward_on(self, model: keras.Model, batch: Batch) -> tuple[tf.Tensor, Gradients]:
        """Return the loss of a batch, and the gradients of the trainable variables."""
        batch = native(batch)
        inputs = tf.constant(batch.inputs)
        targets = tf.constant(batch.targets)
        return self._compiled(model, inputs, targets)

    @tf.function(autograph=False)
    def _compiled(
        self, model: keras.Model, inputs: tf.Tensor, targets: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss and the gradients in float32."""
        with tf.GradientTape() as tape:
            loss = self._loss(model(inputs, training=True), targets)
        weights = [variable.value for variable in model.trainable_variables]
        gradients = tape.gradient(loss, weights)
        return loss, [tf.cast(gradient, tf.float32) for gradient in gradients]

    def _loss(self, outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        if self.workload.loss == "mean-squared-error":
            return tf.reduce_mean(tf.math.squared_difference(outputs, targets))
        logits = tf.cast(outputs, tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))


class OwnTraining:
    """Training by the user's own step, which returns the loss of a batch of its own.

    The step is not compiled, because it may use numpy. It may call functions that are.
    """

    def __init__(self, step: Callable[[keras.Model, int], Any]) -> None:
        self._step = step

    def backward(self, model: keras.Model, step: int) -> tuple[tf.Tensor, Gradients]:
        with tf.GradientTape() as tape:
            loss = self._step(model, step)
            _require_loss(loss)
            # In mixed precision, the optimizer scales the loss.
            scaled = model.optimizer.scale_loss(loss)
        weights = [variable.value for variable in model.trainable_variables]
        gradients = tape.gradient(scaled, weights)
        if all(gradient is None for gradient in gradients):
            raise UnusableModel(
                "the loss that the step function returned does not depend on the model's trainable "
                "variables; compute it with TensorFlow or keras.ops from the model's outputs"
            )
        return loss, [_dense(gradient) for gradient in gradients]


class RandomTraining:
    """Training by random gradients, which are the same on every rank. There is no loss."""

    def backward(self, model: keras.Model, step: int) -> tuple[tf.Tensor, Gradients]:
        variables = model.trainable_variables
        shapes = [tuple(variable.shape) for variable in variables]
        gradients: Gradients = []
        for variable, values in zip(variables, gradients_like(shapes, step), strict=True):
            gradients.append(tf.cast(tf.constant(values), variable.dtype))
        return tf.constant(0.0), gradients


def native(batch: Batch) -> Batch:
    """Return a batch in which the channels of images are last."""
    if batch.inputs.ndim != 4:
        return batch
    return Batch(np.ascontiguousarray(batch.inputs.transpose(CHANNELS_LAST)), batch.targets)


def _require_loss(loss: Any) -> None:
    """Refuse what a user's step returns unless it is a tensor of one element."""
    if not isinstance(loss, tf.Tensor):
        raise UnusableModel(
            "the step function must return the loss alone, as a tensor, and leave the gradients "
            f"and the optimizer to ckptbench; it returned {in_words(loss)}"
        )
    if loss.shape.num_elements() != 1 or not loss.dtype.is_floating:
        raise UnusableModel(
            "the step function must return a loss of one floating-point number; it returned "
            f"a tensor of shape {list(loss.shape)} and type {loss.dtype.name}"
        )


def _dense(gradient: Any) -> tf.Tensor | None:
    """Return a gradient as one tensor. That of an embedding holds the changed rows alone."""
    return None if gradient is None else tf.convert_to_tensor(gradient)
