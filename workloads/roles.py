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


@dataclass(frozen=True)
class LeafSpec:
    """One tensor that every framework's state has. `dtype` is the numpy name, or "bfloat16", which numpy lacks."""

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
