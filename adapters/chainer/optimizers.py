"""The workloads' optimizers.

Chainer's own compute other updates, or keep other quantities in their slots.
"""

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
    """The rule v = momentum * v + gradient; weight = weight - lr * v.

    Chainer's own rule keeps -lr * v in the slot, which is not the quantity that the workload names.
    In exact arithmetic, both give the same weights as long as the learning rate stays the same.
    """

    def update_core(self, param: Parameter) -> None:
        """Change the slot and the weight in place, on either device."""
        slot = self.state["v"]
        slot *= self.hyperparam.momentum
        slot += param.grad
        weight = param.array
        weight -= self.hyperparam.lr * slot


class Momentum(chainer.optimizers.MomentumSGD):
    """MomentumSGD with the workload's slot."""

    def create_update_rule(self) -> MomentumRule:
        """Return a new rule for a parameter."""
        return MomentumRule(self.hyperparam)


class Adam(chainer.optimizers.Adam):
    """Adam that adds epsilon to the root of the corrected second moment.

    Chainer adds epsilon to the root of the uncorrected moment, and corrects both by the learning
    rate. If epsilon is multiplied by the root of the correction, the update is the workload's. The
    slots are the same either way.
    """

    def __init__(self, learning_rate: float, beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon)
        self.epsilon = epsilon

    def update(self, lossfun: Any = None, *args: Any, **kwds: Any) -> None:
        """Take a step with the corrected epsilon."""
        self.eps = self.epsilon * math.sqrt(1 - self.beta2 ** (self.t + 1))
        super().update(lossfun, *args, **kwds)


def new_optimizer(definition: workloads.optimizers.Optimizer, model: Link) -> GradientMethod:
    """Return the optimizer of a model, with its slots."""
    optimizer: GradientMethod
    match definition:
        case workloads.optimizers.Sgd(learning_rate, momentum, weight_decay):
            optimizer = Momentum(learning_rate, momentum).setup(model)
            optimizer.add_hook(WeightDecay(weight_decay))
        case workloads.optimizers.Adam(learning_rate, beta1, beta2, epsilon):
            optimizer = Adam(learning_rate, beta1, beta2, epsilon).setup(model)
    for parameter in model.params():
        # Chainer makes the slots in the first step. A state needs them before that, to be saved or
        # loaded into. This private method makes the dictionary that the public `init_state` fills.
        parameter.update_rule._init_states(parameter)
    return optimizer
