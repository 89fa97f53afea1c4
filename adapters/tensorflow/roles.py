"""What the variables in Keras's files are, by the names they have there."""

from __future__ import annotations

import re

from adapters.tensorflow.state import CANONICAL
from workloads import Role

_KINDS = {
    kind: Role.BUFFER if name.startswith("running_") else Role.WEIGHT
    for kind, name in CANONICAL.items()
}
_KINDS["seed_generator_state"] = Role.RNG
# Keras numbers a layer's variables, the trainable ones first: of a batch norm, scale and shift are
# 0 and 1.
_MOVING_STATISTIC = re.compile(r"layers/batch_norm(_\d+)?/vars/[23]")
_LEARNING_RATE = "optimizer/vars/1"  # behind the count of steps, before the slots


def of_variable(name: str) -> Role:
    """The role of a variable of the model by its Keras path, such as "stem.norm/gamma"; KeyError for one of another kind."""
    return _KINDS[name.rpartition("/")[2]]


def of_dataset(name: str) -> Role | None:
    """The role of a dataset of Keras 3, such as "layers/conv2d_1/vars/0".

    The learning rate is a setting, and no state.
    """
    if name == _LEARNING_RATE:
        return None
    if name.startswith("optimizer/"):
        return Role.OPTIMIZER
    return Role.BUFFER if _MOVING_STATISTIC.fullmatch(name) else Role.WEIGHT


def of_legacy_dataset(name: str) -> Role | None:
    """The role of a dataset of a legacy file, such as "model_weights/norm/norm/gamma" or "optimizer_weights/sgd/iteration"."""
    if name.startswith("model_weights/"):
        return of_variable(name)
    return None if name.endswith("/learning_rate") else Role.OPTIMIZER
