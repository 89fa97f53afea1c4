"""The optimizers of the workloads, with everything that frameworks default differently."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sgd:
    """Momentum without dampening: v = momentum * v + (gradient + weight_decay * weight); weight -= learning_rate * v."""

    learning_rate: float
    momentum: float
    weight_decay: float

    @property
    def slots(self) -> tuple[str, ...]:
        """What it keeps beside every parameter, of the parameter's shape."""
        return ("momentum",)


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction (Kingma and Ba 2015); epsilon is added after the square root."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        """What it keeps beside every parameter, of the parameter's shape."""
        return ("exp_avg", "exp_avg_sq")


Optimizer = Sgd | Adam
