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
class ControlRecord(Record):
    """The costs that one life of the control told, stored when it was over.

    There is one cost for each undisturbed step, and for each checkpoint but the last one. A
    slowdown is in seconds, and below 0 where the steps beside a checkpoint happened to be shorter
    than others. `detect_ns`, `restart_ns` and `restore_ns` are the way back from the kill before;
    None for the first life. `life` counts from 0, and those up to `SCALE_KILLS` came before the
    schedule.
    """

    kind: Literal["control"]
    case: str
    process: int
    rank: int
    life: int
    detect_ns: int | None
    restart_ns: int | None
    restore_ns: int | None
    step_ns: tuple[int, ...]
    stall_ns: tuple[int, ...]
    lag_ns: tuple[int, ...]
    slowdown_s: tuple[float, ...]


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

    `kills` counts the ways back of the control that it rests on.
    """

    kind: Literal["prediction"]
    case: str
    process: int
    rank: int
    kills: int
    lost: tuple[Predicted, ...]


@dataclass(frozen=True)
class GoodputRecord(StageRecord):
    """The use of the time of a job whose ranks were killed.

    `steps` counts the distinct steps whose result was kept at the end, `steps_done` all steps,
    `step_ns` is the mean undisturbed step of `step_of`, and `wall_ns` the time from the first start
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
    step_of: Literal["job", "control"]
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


RECORDS = (ControlRecord, ScheduleRecord, PredictionRecord, GoodputRecord)
