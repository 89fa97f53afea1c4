"""The part of a PyTorch state that trains it: where its gradients come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from adapters.base import Place, UnusableModel
from adapters.pytorch import shards
from adapters.shared.own_models import in_words
from adapters.shared.random_gradients import noise_of
from workloads import Batch, Workload


class Training(Protocol):
    """The source of gradients."""

    def backward(self, runner: nn.Module, step: int) -> Tensor:
        """Leave the gradients of a step in the parameters of `runner`, and return the loss."""


class WorkloadTraining:
    """Training on the batches and with the loss of a workload."""

    def __init__(self, workload: Workload, place: Place, device: torch.device) -> None:
        self.workload = workload
        self._place = place
        self._device = device

    def backward(self, runner: nn.Module, step: int) -> Tensor:
        batch = self.workload.batch(step, self._place.rank, self._place.world)
        return self.backward_on(runner, batch)

    def backward_on(self, runner: nn.Module, batch: Batch) -> Tensor:
        """Leave the gradients of a batch in the parameters of `runner`, and return the loss."""
        inputs = torch.from_numpy(batch.inputs).to(self._device)
        targets = torch.from_numpy(batch.targets).to(self._device)
        loss = self._loss(runner(inputs), targets)
        loss.backward()
        return loss.detach()

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.workload.loss == "mean-squared-error":
            return functional.mse_loss(outputs, targets)
        return functional.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten().long())


class OwnTraining:
    """Training by the user's own step, which returns the loss of a batch of its own."""

    def __init__(self, step: Callable[[nn.Module, int], Any]) -> None:
        self._step = step

    def backward(self, runner: nn.Module, step: int) -> Tensor:
        loss = self._step(runner, step)
        if not isinstance(loss, Tensor):
            raise UnusableModel(
                "the step function must return the loss alone, a tensor with one number, and leave "
                f"backward() and optimizer.step() to ckptbench; it returned {in_words(loss)}"
            )
        if loss.numel() != 1 or not loss.requires_grad:
            raise UnusableModel(
                "the step function must return a loss of one element that depends on the "
                f"parameters; it returned {_described(loss)}"
            )
        loss.backward()
        _draw(loss.device)
        return loss.detach()


class RandomTraining:
    """Training by random gradients, which are the same on every rank. There is no loss."""

    def backward(self, runner: nn.Module, step: int) -> Tensor:
        # On a GPU it is repeated there, because a copy of all gradients would take long.
        device = next(runner.parameters()).device
        noise = torch.from_numpy(noise_of(step)).to(device)
        for parameter in runner.parameters():
            if parameter.requires_grad:
                parameter.grad = _gradient_like(parameter, noise)
        _draw(device)
        return torch.tensor(0.0)


def _draw(device: torch.device) -> None:
    """Draw a random number from each generator, because training moves all of the state.

    A step without dropout draws none. Then every load would find the saved state of a generator,
    and the model would have to be built again with another seed.
    """
    torch.rand(())
    torch.rand((), device=device)


def _gradient_like(parameter: nn.Parameter, noise: Tensor) -> Tensor:
    """Return a gradient of the parameter's shape, type and placement."""
    own_part = shards.local(parameter.detach())
    repeats = math.ceil(own_part.numel() / noise.numel())
    values = noise.repeat(repeats)[: own_part.numel()].view(own_part.shape)
    gradient = values.to(own_part.device, own_part.dtype)
    if isinstance(parameter, DTensor):
        return DTensor.from_local(
            gradient, parameter.device_mesh, parameter.placements, shape=parameter.shape
        )
    return gradient


def _described(tensor: Tensor) -> str:
    attached = "" if tensor.requires_grad else " without a gradient"
    return f"a tensor of shape {list(tensor.shape)}{attached}"
