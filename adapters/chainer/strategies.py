"""How the ranks train together: what takes an optimizer's step with the gradients of all of them.

The names are those of adapter.toml. ChainerMN exchanges the gradients inside its optimizer's
`update`.
"""

from __future__ import annotations

from typing import Protocol

import chainermn
import numpy as np
from chainer import Link
from chainer.backends import cuda
from chainer.optimizer import GradientMethod

from adapters.base import Place


class Stepper(Protocol):
    """Takes an optimizer's step."""

    def update(self) -> None:
        """Average the gradients over the ranks and move the weights."""


class Strategy:
    """A world of one, in which an optimizer takes its own steps."""

    def stepper(self, optimizer: GradientMethod) -> Stepper:
        """Return what takes the optimizer's steps on all ranks. All call it together."""
        return optimizer

    def leave(self) -> None:
        """Leave the other ranks."""


class Flat(Strategy):
    """One all-reduce of all gradients in one buffer on the host."""

    def stepper(self, optimizer: GradientMethod) -> Stepper:
        """Return the optimizer with averaged gradients."""
        return FlatMean(optimizer)


class FlatMean:
    """Averages over the ranks in one flat buffer, the same in every step."""

    def __init__(self, optimizer: GradientMethod) -> None:
        self._optimizer = optimizer

    def update(self) -> None:
        """Average the gradients over the ranks and move the weights."""
        _average_gradients(self._optimizer.target)
        self._optimizer.update()


class ChainerMn(Strategy):
    """ChainerMN as its documentation has it: a communicator, and an optimizer around the optimizer.

    Such an optimizer's first `update` finds a model that it has not seen, sends out rank 0's
    weights, and takes no step.
    """

    def __init__(self, device: str) -> None:
        self._communicator = chainermn.create_communicator(
            "pure_nccl" if device == "cuda" else "naive"
        )

    def stepper(self, optimizer: GradientMethod) -> Stepper:
        """Return ChainerMN's optimizer, which will lose its first update."""
        multi_node: Stepper = chainermn.create_multi_node_optimizer(optimizer, self._communicator)
        return multi_node

    def leave(self) -> None:
        """Give the communicator back."""
        self._communicator.finalize()


class ChainerMnRemedy(ChainerMn):
    """The same without the loss: the weights are sent out before training."""

    def stepper(self, optimizer: GradientMethod) -> Stepper:
        """Return ChainerMN's optimizer, which has seen the model."""
        multi_node = chainermn.create_multi_node_optimizer(optimizer, self._communicator)
        self._communicator.bcast_data(optimizer.target)
        multi_node.is_changed(optimizer.target)  # has it remember what it compares the model with
        seen: Stepper = multi_node
        return seen


def join(place: Place) -> Strategy:
    """Return the place's strategy, on which all ranks have to call this together.

    Raises KeyError for an unknown one.
    """
    if place.world == 1:
        return Strategy()
    if place.strategy == "flat":
        return Flat()
    return {"chainermn": ChainerMn, "chainermn-remedy": ChainerMnRemedy}[place.strategy](
        place.device
    )


def _average_gradients(model: Link) -> None:
    from mpi4py import MPI  # starts MPI, which a world of one does without

    trained = list(model.params())
    flat = np.concatenate([cuda.to_cpu(parameter.grad).reshape(-1) for parameter in trained])
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, flat)
    flat /= MPI.COMM_WORLD.Get_size()
    ends = np.cumsum([parameter.size for parameter in trained])
    for parameter, part in zip(trained, np.split(flat, ends[:-1]), strict=True):
        parameter.grad[...] = parameter.device.send(part.reshape(parameter.shape))
