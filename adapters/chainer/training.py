"""The part of a Chainer state that trains it: where its gradients come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import chainer
import chainer.functions as F  # noqa: N812
import numpy as np
from chainer import Link, Variable

from adapters.base import Place, UnusableModel
from adapters.chainer.modules import Array
from adapters.shared.own_models import in_words
from adapters.shared.random_gradients import gradients_like
from workloads import Batch, Workload


class Training(Protocol):
    """The source of gradients."""

    def backward(self, model: Link, step: int) -> Array:
        """Leave the gradients of a step in the parameters of a model, and return the loss."""


class WorkloadTraining:
    """Training on the batches and with the loss of a workload."""

    def __init__(self, workload: Workload, place: Place, device: chainer.device.Device) -> None:
        self.workload = workload
        self._place = place
        self._device = device

    def backward(self, model: Link, step: int) -> Array:
        batch = self.workload.batch(step, self._place.rank, self._place.world)
        return self.backward_on(model, batch)

    def backward_on(self, model: Link, batch: Batch) -> Array:
        """Leave the gradients of a batch in the parameters of a model, and return the loss."""
        inputs, targets = self._device.send((batch.inputs, batch.targets))
        loss = self._loss(model(inputs), targets)
        loss.backward()
        return loss.array

    def _loss(self, outputs: Variable, targets: Array) -> Variable:
        if self.workload.loss == "mean-squared-error":
            return F.mean_squared_error(outputs, targets)
        return F.softmax_cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


class OwnTraining:
    """Training by the user's own step, which returns the loss of a batch of its own."""

    def __init__(self, step: Callable[[Link, int], Any]) -> None:
        self._step = step

    def backward(self, model: Link, step: int) -> Array:
        loss = self._step(model, step)
        if not isinstance(loss, Variable):
            raise UnusableModel(
                "the step function must return the loss alone, as a chainer.Variable, and leave "
                f"backward() and the optimizer to ckptbench; it returned {in_words(loss)}"
            )
        if loss.size != 1:
            raise UnusableModel(
                "the step function must return a loss of one element; it returned a Variable of "
                f"shape {list(loss.shape)}"
            )
        loss.backward()
        if all(parameter.grad is None for parameter in model.params()):
            raise UnusableModel(
                "the loss that the step function returned does not depend on the model's "
                "parameters; compute it with chainer.functions from the model's outputs"
            )
        return loss.array


class RandomTraining:
    """Training by random gradients, which are the same on every rank. There is no loss."""

    def backward(self, model: Link, step: int) -> Array:
        parameters = list(model.params())
        shapes = [parameter.shape for parameter in parameters]
        for parameter, values in zip(parameters, gradients_like(shapes, step), strict=True):
            parameter.grad = parameter.device.send(values.astype(parameter.dtype))
        return np.float32(0)
