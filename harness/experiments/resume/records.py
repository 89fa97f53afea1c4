"""The records of a run that is killed and goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import StageRecord


@dataclass(frozen=True)
class StraightRecord(StageRecord):
    """A training run without interruption, against which others are held."""

    kind: Literal["straight"]
    case: str
    process: int
    rank: int
    losses: tuple[float, ...]
    ranks: int = 1  # for how many it speaks; the losses are those of its own part of the batch

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
    """How far a leaf is from that of the straight run.

    `max_ulp` counts representable numbers between; None for other types.
    """

    name: str
    role: str
    max_ulp: int | None
    max_difference: float


@dataclass(frozen=True)
class ResumeRecord(StageRecord):
    """A run that went on from a checkpoint in another process (or, from step 0, ran again), held against the straight run.

    `losses` are those of the steps after `at_step`. `diverged_at` is the first step after which a
    leaf differs: `at_step` itself where the load did not restore it, or where the interrupted run
    had not been like the straight one: `restored` says whether the load brought back what that had
    saved. `first` has the leaves that differ there, the farthest first, `first_count` of them in
    all; `final_count` and `final_max_ulp` tell of the last step.
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
    # over all leaves that differ there; None where none is a floating point, or in older records
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
