"""The roles of variables by the names that they have in Keras's files."""

from __future__ import annotations

import re

from adapters.tensorflow.state import CANONICAL
from workloads import Role

_KINDS = {
    kind: Role.BUFFER if name.startswith("running_") else Role.WEIGHT
    for kind, name in CANONICAL.items()
}
_KINDS["seed_generator_state"] = Role.RNG
# Keras numbers a layer's variables, and the trainable ones come first. So 0 and 1 are the scale and
# the shift of a batch norm.
_MOVING_STATISTIC = re.compile(r"(.*/)?layers/batch_norm(alization)?(_\d+)?/vars/[23]")
# It stands between the count of steps and the slots.
_LEARNING_RATE = "optimizer/vars/1"


def of_variable(name: str) -> Role:
    """Return the role of a variable by its Keras path, such as "stem.norm/gamma".

    A variable of another kind, which a model of the user's own may have, counts as a weight.
    """
    return _KINDS.get(name.rpartition("/")[2], Role.WEIGHT)


def of_dataset(name: str) -> Role | None:
    """Return the role of a dataset of Keras 3, such as "layers/conv2d_1/vars/0".

    The learning rate is a setting, so its role is None.
    """
    if name == _LEARNING_RATE:
        return None
    if name.startswith("optimizer/"):
        return Role.OPTIMIZER
    return Role.BUFFER if _MOVING_STATISTIC.fullmatch(name) else Role.WEIGHT


def of_legacy_dataset(name: str) -> Role | None:
    """Return the role of a dataset in a legacy file.

    Names are like "model_weights/norm/norm/gamma" or "optimizer_weights/sgd/iteration".
    """
    if name.startswith("model_weights/"):
        return of_variable(name)
    return None if name.endswith("/learning_rate") else Role.OPTIMIZER
