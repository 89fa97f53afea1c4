"""The optimizers of the workloads as Keras optimizers.

Keras's own compute other updates and keep other slots. `keras.optimizers.SGD` keeps the momentum
times -learning_rate, and `keras.optimizers.Adam` adds epsilon before the bias correction. Neither
keeps float32 copies of weights in lower precision.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import workloads.optimizers
from adapters.tensorflow.modules import PACKAGE
from workloads import Workload


class SlotOptimizer(keras.optimizers.Optimizer):
    """An optimizer with float32 slots under their canonical names.

    With `master_weights`, it keeps a float32 copy of every weight, too.
    """

    def __init__(
        self,
        slots: tuple[str, ...],
        numbers: dict[str, float],
        learning_rate: float,
        master_weights: bool,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, **common)
        self.master_weights = master_weights
        self._slot_names = slots
        self._numbers = numbers

    def build(self, variables: list[keras.Variable]) -> None:
        """Make the slots of the weights. The master copies start with the values of the weights."""
        if self.built:
            return
        super().build(variables)
        self._slots = {name: self._new_slots(variables, name) for name in self._slot_names}
        if self.master_weights:
            self._slots["master"] = self._new_slots(variables, "master")
            for master, variable in zip(self._slots["master"], variables, strict=True):
                master.assign(variable)

    @property
    def slots(self) -> dict[str, list[keras.Variable]]:
        """The slots by their canonical names, as lists in the order of the weights."""
        return self._slots

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `__init__`."""
        return super().get_config() | dict(self._numbers) | {"master_weights": self.master_weights}

    def slot(self, name: str, variable: tf.Variable) -> tf.Variable:
        """Return one slot of a weight."""
        return self._slots[name][self._get_variable_index(variable)].value

    def trained(self, variable: tf.Variable) -> tf.Variable:
        """Return the variable that the steps change: the weight itself, or its master copy."""
        return self.slot("master", variable) if self.master_weights else variable

    def step(self, variable: tf.Variable, change: tf.Tensor) -> None:
        """Subtract the change from a weight."""
        trained = self.trained(variable)
        trained.assign_sub(change)
        if self.master_weights:
            variable.assign(tf.cast(trained, variable.dtype))

    def _new_slots(self, variables: list[keras.Variable], name: str) -> list[keras.Variable]:
        return [self._new_slot(variable, name) for variable in variables]

    def _new_slot(self, variable: keras.Variable, name: str) -> keras.Variable:
        full_name = f"{variable.path.replace('/', '_')}_{name}"
        return self.add_variable(variable.shape, dtype="float32", name=full_name)


@keras.saving.register_keras_serializable(PACKAGE)
class Sgd(SlotOptimizer):
    """`workloads.optimizers.Sgd` as a Keras optimizer.

    `decay` is not Keras's `weight_decay`, which does not change the momentum.
    """

    def __init__(
        self,
        learning_rate: float,
        momentum: float,
        decay: float,
        master_weights: bool = False,
        **common: Any,
    ) -> None:
        numbers = {"momentum": momentum, "decay": decay}
        super().__init__(("momentum",), numbers, learning_rate, master_weights, **common)
        self.momentum = momentum
        self.decay = decay

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        """Change one weight and its slot."""
        momentum = self.slot("momentum", variable)
        momentum.assign(self.momentum * momentum + (gradient + self.decay * self.trained(variable)))
        self.step(variable, learning_rate * momentum)


@keras.saving.register_keras_serializable(PACKAGE)
class Adam(SlotOptimizer):
    """`workloads.optimizers.Adam` as a Keras optimizer."""

    def __init__(
        self,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        master_weights: bool = False,
        **common: Any,
    ) -> None:
        numbers = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        slots = ("exp_avg", "exp_avg_sq")
        super().__init__(slots, numbers, learning_rate, master_weights, **common)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        """Change one weight and its slots."""
        mean = self.slot("exp_avg", variable)
        square = self.slot("exp_avg_sq", variable)
        mean.assign_add((1 - self.beta1) * (gradient - mean))
        square.assign_add((1 - self.beta2) * (tf.square(gradient) - square))
        root = tf.sqrt(square / self._correction(self.beta2)) + self.epsilon
        self.step(variable, learning_rate / self._correction(self.beta1) * mean / root)

    def _correction(self, beta: float) -> tf.Tensor:
        """Return 1 - beta ** t.

        It is computed in float64, because float32 would lose digits in the first steps.
        """
        return tf.cast(1 - beta ** tf.cast(self.iterations + 1, tf.float64), tf.float32)


def new_optimizer(workload: Workload) -> SlotOptimizer:
    """Return the optimizer of a workload, which has no slots yet."""
    match workload.optimizer:
        case workloads.optimizers.Sgd(learning_rate, momentum, weight_decay):
            return Sgd(learning_rate, momentum, weight_decay, workload.master_weights)
        case workloads.optimizers.Adam(learning_rate, beta1, beta2, epsilon):
            return Adam(learning_rate, beta1, beta2, epsilon, workload.master_weights)
