"""The records of a run that is killed and continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import StageRecord


@dataclass(frozen=True)
class StraightRecord(StageRecord):
    """A training run without interruption, with which others are compared."""

    kind: Literal["straight"]
    case: str
    process: int
    rank: int
    losses: tuple[float, ...]
    ranks: int = 1  # the number it speaks for; the losses are of this rank's part of the batch

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "straight"


@dataclass(frozen=True)
class InterruptRecord(StageRecord):
    """The same run up to its checkpoint, after which the process was killed."""

    kind: Literal["interrupt"]
    case: str
    process: int
    rank: int
    at_step: int
    losses: tuple[float, ...]
    file_bytes: int
    ranks: int = 1

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "interrupt"


@dataclass(frozen=True)
class Divergence:
    """The distance of a leaf from that of the straight run.

    `max_ulp` counts the representable numbers between them; None if the type is not a floating
    point.
    """

    name: str
    role: str
    max_ulp: int | None
    max_difference: float


@dataclass(frozen=True)
class ResumeRecord(StageRecord):
    """A run that continued from a checkpoint in another process, compared with the straight run.

    A run from step 0 has no checkpoint, and trains again from the beginning. `losses` are those of
    the steps after `at_step`. `diverged_at` is the first step after which a leaf differs. It is
    `at_step` itself if the load did not restore the leaf, or if the interrupted run had differed
    from the straight one before it saved. `restored` tells these apart: it says whether the load
    brought back the saved values. `first` has some of the `first_count` leaves that differ there,
    the farthest first. `final_count` and `final_max_ulp` are of the last step.
    """

    kind: Literal["resume"]
    case: str
    process: int
    rank: int
    at_step: int
    steps: int
    losses: tuple[float, ...]
    leaves: int
    identical: bool
    diverged_at: int | None
    first: tuple[Divergence, ...]
    first_count: int
    final_count: int
    final_max_ulp: int
    restored: bool | None = None  # None in records that do not tell
    first_roles: tuple[str, ...] = ()
    # over all leaves that differ first; None if none is a floating point, and in older records
    first_max_ulp: int | None = None
    ranks: int = 1

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "again" if self.at_step == 0 else "resume"


RECORDS = (
    StraightRecord,
    InterruptRecord,
    ResumeRecord,
)
