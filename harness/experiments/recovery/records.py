"""The records of kills and of the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.experiments.recovery import Bits
from harness.wire.records import Record, StageRecord

SameAs = Bits | Literal["unknown"]


@dataclass(frozen=True)
class KillRecord(Record):
    """A rank that was killed while it trained, and what came after, in nanoseconds from the kill.

    The parts follow one another and their sum is `back_ns`, the time until every rank has done the
    killed step. A part that the way does not have is None. `back_ns` is None where training did not
    come back, and `reason` says why. `same_as` names the undisturbed run whose bits the state then
    has: that of as many ranks, or the one from which the dead ranks take leave at the same step.
    """

    kind: Literal["kill"]
    case: str
    process: int
    rank: int
    number: int
    slot: int
    step: int
    instant: str
    ranks_before: int
    ranks_after: int
    detect_ns: int | None
    reconfigure_ns: int | None
    restart_ns: int | None
    restore_ns: int | None
    recompute_ns: int | None
    back_ns: int | None
    steps_recomputed: int
    own_state_lost: bool  # what the dead rank alone had, such as its random generator
    same_as: SameAs
    reason: str = ""
    told: str = ""  # the framework's own words to the survivors
    # until the survivors took a step, where they do so before the dead rank is replaced
    paused_ns: int | None = None
    # the part of `restart_ns` in which the slowest rank opened the method; None in older records
    open_ns: int | None = None
    # the share of the checkpoint's files in the page cache just before a restart loaded them; None
    # where the kernel does not say, and in older records
    cached: float | None = None


@dataclass(frozen=True)
class SteadyRecord(Record):
    """The median cost of a step without a failure, of all ranks, in nanoseconds.

    `agreement_ns` is the agreement at the end of the step, and a quorum before it. `copies_ns` is
    for what a rank copies and mirrors, `step_ns` for the whole step. `save_ns` is how long the rank
    that waits longest stands still for a checkpoint, every few steps; 0 where there is none, and in
    older records. `spare_share` is the part of a processor that a waiting spare took. `loss` are
    the mean losses of the steps. Any `epoch_steps` of them in a row are of the same examples. It is
    0 in a record of an older version, where each step has other examples. When clocks were
    compared, an instant on one node may have been off by `clock_error_ns` on another.
    """

    kind: Literal["steady"]
    case: str
    process: int
    rank: int
    step_ns: int
    agreement_ns: int
    copies_ns: int
    spare_share: float | None
    loss: tuple[float, ...]
    epoch_steps: int = 0
    clock_error_ns: int = 0
    save_ns: int = 0


@dataclass(frozen=True)
class RecoveredRecord(StageRecord):
    """The end of all kills of a case."""

    kind: Literal["recovered"]
    case: str
    process: int
    rank: int
    ranks: int = 1

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "recover"


RECORDS = (KillRecord, SteadyRecord, RecoveredRecord)
