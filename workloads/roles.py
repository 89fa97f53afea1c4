"""What the parts of a training state are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a leaf is to the training loop, which decides whether a method covers it."""

    WEIGHT = "weight"
    BUFFER = "buffer"  # batch-norm statistics: changed by the forward pass, not by the optimizer
    OPTIMIZER = "optimizer"  # slots, master weights and step counters
    RNG = "rng"
    POSITION = "position"  # where in the data the training stands


_PARTS = {
    "weights": Role.WEIGHT,
    "buffers": Role.BUFFER,
    "optimizer": Role.OPTIMIZER,
    "rng": Role.RNG,
    "position": Role.POSITION,
}


def role_of(name: str) -> Role:
    """The role of a leaf by its canonical name, whose first part tells; KeyError for a name of another kind."""
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
