"""The strategies by which ranks train together, with the names in adapter.toml.

A strategy gives the object that takes an optimizer's step with the gradients of all ranks.
ChainerMN exchanges them in the `update` of its optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import chainermn
import numpy as np
from chainer import Link
from chainer.backends import cuda
from chainer.optimizer import GradientMethod

from adapters.base import Place


class Stepper(Protocol):
    """An object that takes the steps of an optimizer."""

    def update(self) -> None:
        """Average the gradients over the ranks and move the weights."""


class Strategy:
    """Training on one rank, where the optimizer takes its steps itself."""

    def stepper(self, optimizer: GradientMethod) -> Stepper:
        """Return the object that takes the optimizer's steps. All ranks call this together."""
        return optimizer

    def leave(self) -> None:
        """Leave the other ranks."""


class Flat(Strategy):
    """One all-reduce of all gradients in one buffer on the host."""

    def stepper(self, optimizer: GradientMethod) -> Stepper:
        return FlatMean(optimizer)


class FlatMean:
    """An optimizer whose gradients are averaged in one flat buffer before each step."""

    def __init__(self, optimizer: GradientMethod) -> None:
        self._optimizer = optimizer

    def update(self) -> None:
        """Average the gradients over the ranks and move the weights."""
        _average_gradients(self._optimizer.target)
        self._optimizer.update()


class ChainerMn(Strategy):
    """ChainerMN as in its documentation, with a communicator and an optimizer around the optimizer.

    The first `update` of that optimizer gets a model that it does not know. It sends rank 0's
    weights to the other ranks, and takes no step.
    """

    def __init__(self, device: str) -> None:
        name = "pure_nccl" if device == "cuda" else "naive"
        self._communicator = chainermn.create_communicator(name)

    def stepper(self, optimizer: GradientMethod) -> Stepper:
        """Return ChainerMN's optimizer, which loses its first update."""
        multi_node: Stepper = chainermn.create_multi_node_optimizer(optimizer, self._communicator)
        return multi_node

    def leave(self) -> None:
        self._communicator.finalize()


class ChainerMnRemedy(ChainerMn):
    """ChainerMN without a lost update, because the weights are sent before training."""

    def stepper(self, optimizer: GradientMethod) -> Stepper:
        """Return ChainerMN's optimizer, which knows the model already."""
        multi_node = chainermn.create_multi_node_optimizer(optimizer, self._communicator)
        self._communicator.bcast_data(optimizer.target)
        # This question makes the optimizer remember the model.
        multi_node.is_changed(optimizer.target)
        stepper: Stepper = multi_node
        return stepper


STRATEGIES: dict[str, Callable[[str], Strategy]] = {
    "chainermn": ChainerMn,
    "chainermn-remedy": ChainerMnRemedy,
    "flat": lambda device: Flat(),
}


def join(place: Place) -> Strategy:
    """Return the strategy of a place. All ranks call this together.

    Raises ValueError if several ranks have no known strategy.
    """
    if place.world == 1:
        return Strategy()
    if place.strategy not in STRATEGIES:
        raise ValueError(
            f"{place.world} ranks need one of the strategies {', '.join(STRATEGIES)}, "
            f"not {place.strategy!r}"
        )
    return STRATEGIES[place.strategy](place.device)


def _average_gradients(model: Link) -> None:
    # The import starts MPI, which a world of one rank does not need.
    from mpi4py import MPI

    trained = list(model.params())
    flat = np.concatenate([cuda.to_cpu(parameter.grad).reshape(-1) for parameter in trained])
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, flat)
    flat /= MPI.COMM_WORLD.Get_size()
    ends = np.cumsum([parameter.size for parameter in trained])
    for parameter, part in zip(trained, np.split(flat, ends[:-1]), strict=True):
        parameter.grad[...] = parameter.device.send(part.reshape(parameter.shape))
