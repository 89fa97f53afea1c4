"""The kinds of tensors in a training state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """The part of a leaf in training, which decides whether a method covers the leaf."""

    WEIGHT = "weight"
    BUFFER = "buffer"  # batch-norm statistics, which the forward pass changes
    OPTIMIZER = "optimizer"  # slots, master weights and step counters
    RNG = "rng"
    POSITION = "position"  # the number of steps that were taken


_PARTS = {
    "weights": Role.WEIGHT,
    "buffers": Role.BUFFER,
    "optimizer": Role.OPTIMIZER,
    "rng": Role.RNG,
    "position": Role.POSITION,
}


def role_of(name: str) -> Role:
    """Return the role that the first part of a leaf's canonical name stands for.

    Raises KeyError for any other name.
    """
    return _PARTS[name.partition("/")[0]]


@dataclass(frozen=True)
class LeafSpec:
    """One tensor that every framework's state has.

    `dtype` is the numpy name, or "bfloat16", which numpy lacks.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
