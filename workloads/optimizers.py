"""The optimizers of the workloads, with all settings whose defaults differ between frameworks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum, without dampening.

    v = momentum * v + (gradient + weight_decay * weight); weight = weight - learning_rate * v
    """

    learning_rate: float
    momentum: float
    weight_decay: float

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the tensors that belong to every parameter and have its shape."""
        return ("momentum",)


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction (Kingma and Ba 2015).

    Epsilon is added after the square root.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the tensors that belong to every parameter and have its shape."""
        return ("exp_avg", "exp_avg_sq")


Optimizer = Sgd | Adam
