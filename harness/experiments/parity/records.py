"""The record of a few training steps, by which frameworks are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import StageRecord


@dataclass(frozen=True)
class ExtraLeaf:
    """A leaf that only this framework has: a counter, a random generator, the position."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LeafSample:
    """A leaf in a few numbers: its root mean square, and some of its elements.

    The elements are evenly spaced over the canonical layout, the first and the last included.
    """

    name: str
    rms: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class TrajectoryRecord(StageRecord):
    """A few steps of training without dropout, from the workload's own first weights and data.

    `losses` has the loss of every step's forward pass. `forward` has samples of the buffers after
    the first forward and backward pass, and `updated` of every weight and optimizer slot after the
    first step.
    """

    kind: Literal["trajectory"]
    case: str
    process: int
    rank: int
    leaves: int  # that every framework has
    extra: tuple[ExtraLeaf, ...]
    losses: tuple[float, ...]
    forward: tuple[LeafSample, ...]
    updated: tuple[LeafSample, ...]

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "train"


RECORDS = (TrajectoryRecord,)
