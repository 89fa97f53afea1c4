"""The workloads' optimizers, where Chainer computes something else or keeps another quantity in its slots."""

from __future__ import annotations

import math
from typing import Any

import chainer.optimizers
from chainer import Link, Parameter
from chainer.optimizer import GradientMethod
from chainer.optimizer_hooks import WeightDecay
from chainer.optimizers.momentum_sgd import MomentumSGDRule

import workloads.optimizers


class MomentumRule(MomentumSGDRule):
    """v = momentum * v + gradient; weight -= lr * v.

    Chainer's own rule keeps -lr times this v. The weights are the same in exact arithmetic as long
    as the rate is, but the slot would be another quantity than the one that the workload names.
    """

    def update_core(self, param: Parameter) -> None:
        """Move the slot and the weight in place, on either device."""
        slot = self.state["v"]
        slot *= self.hyperparam.momentum
        slot += param.grad
        weight = param.array
        weight -= self.hyperparam.lr * slot


class Momentum(chainer.optimizers.MomentumSGD):
    """MomentumSGD with the workload's slot."""

    def create_update_rule(self) -> MomentumRule:
        """Return a parameter's own rule."""
        return MomentumRule(self.hyperparam)


class Adam(chainer.optimizers.Adam):
    """Adam with epsilon beside the root of the *corrected* second moment.

    Chainer adds it to the root of the uncorrected one, and corrects both with the learning rate.
    Scaling epsilon by the root of the correction gives the workload's update; the slots are the
    same in both.
    """

    def __init__(self, learning_rate: float, beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon)
        self.epsilon = epsilon

    def update(self, lossfun: Any = None, *args: Any, **kwds: Any) -> None:
        """Take a step."""
        self.eps = self.epsilon * math.sqrt(1 - self.beta2 ** (self.t + 1))
        super().update(lossfun, *args, **kwds)


def new_optimizer(definition: workloads.optimizers.Optimizer, model: Link) -> GradientMethod:
    """Return the workload's optimizer of the model, with its slots."""
    optimizer: GradientMethod
    match definition:
        case workloads.optimizers.Sgd(learning_rate, momentum, weight_decay):
            optimizer = Momentum(learning_rate, momentum).setup(model)
            optimizer.add_hook(WeightDecay(weight_decay))
        case workloads.optimizers.Adam(learning_rate, beta1, beta2, epsilon):
            optimizer = Adam(learning_rate, beta1, beta2, epsilon).setup(model)
    for parameter in model.params():
        # Chainer makes the slots in the first step. A state that has taken none must have them to
        # be saved or loaded into; the public `init_state` fills a dictionary that only this makes.
        parameter.update_rule._init_states(parameter)
    return optimizer
