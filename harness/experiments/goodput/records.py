"""The records of a prediction of lost time, and of what the kills then cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import Record, StageRecord

PARTS = ("checkpoints", "recompute", "detect", "restart", "restore")
"""The parts of the lost time."""

VARIANTS = ("whole", "no recomputation", "no lag", "no slowdown")
"""The model, and what it becomes where it leaves a cost out."""


@dataclass(frozen=True)
class Predicted:
    """The lost share of the time by one variant of the model: median and 5th to 95th percentile."""

    variant: str
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class ScheduleRecord(Record):
    """The kills of a case, which are drawn before the job begins that they strike.

    `kills_ns` are the instants at which ranks are to be killed, and `length_ns` the end, on the
    clock of the job. `advised_steps` is the advised interval, and `interval_steps` the one of the
    case.
    """

    kind: Literal["schedule"]
    case: str
    process: int
    rank: int
    mtbf_ns: int
    advised_steps: int
    interval_steps: int
    kills_ns: tuple[int, ...]
    length_ns: int


@dataclass(frozen=True)
class PredictionRecord(Record):
    """The prediction of a case from its control, stored before the judged job's events are read.

    There is one cost for each kill, step or checkpoint of the control. The first checkpoint of each
    process is apart, because it may cost more than the others. A slowdown is in seconds, and
    below 0 where the steps beside a checkpoint happened to be shorter than others.
    """

    kind: Literal["prediction"]
    case: str
    process: int
    rank: int
    detect_ns: tuple[int, ...]
    restart_ns: tuple[int, ...]
    restore_ns: tuple[int, ...]
    step_ns: tuple[int, ...]  # of undisturbed steps
    first_stall_ns: tuple[int, ...]
    first_lag_ns: tuple[int, ...]
    first_slowdown_s: tuple[float, ...]
    stall_ns: tuple[int, ...]
    lag_ns: tuple[int, ...]
    slowdown_s: tuple[float, ...]
    lost: tuple[Predicted, ...]


@dataclass(frozen=True)
class GoodputRecord(StageRecord):
    """The use of the time of a job whose ranks were killed.

    `steps` counts the distinct steps whose result was kept at the end, `steps_done` all steps,
    `step_ns` is the mean undisturbed step of this job, and `wall_ns` the time from the first start
    to the end, without the turns of the control. `training_ns` is the time in which ranks took
    steps or saved, and `checkpoints_ns` the part of it that checkpoints took. The rest of the time
    is detection, restart and restore. `kills_ns` are the instants of the real kills, and `struck`
    says for each what it struck.
    """

    kind: Literal["goodput"]
    case: str
    process: int
    rank: int
    steps: int
    steps_done: int
    step_ns: int
    wall_ns: int
    kills_ns: tuple[int, ...]
    struck: tuple[str, ...]
    training_ns: int
    checkpoints_ns: int
    detect_ns: int
    restart_ns: int
    restore_ns: int
    ranks: int = 1

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "recover"

    @property
    def lost(self) -> float:
        """The lost share of the time."""
        return 1.0 - self.steps * self.step_ns / self.wall_ns

    @property
    def recompute_ns(self) -> int:
        """The time of steps that were undone, and of those that kills cut short.

        It may be a little below 0 where there was none, because the mean step is that of all steps.
        """
        return self.training_ns - self.checkpoints_ns - self.steps * self.step_ns


RECORDS = (ScheduleRecord, PredictionRecord, GoodputRecord)
