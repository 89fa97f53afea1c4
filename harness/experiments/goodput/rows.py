"""The rows of experiment `goodput`: the predicted loss of time beside the measured one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.analysis import text
from harness.analysis.columns import column, identity_column
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity
from harness.analysis.statistics import Estimate
from harness.experiments.goodput import INTERVALS, KILLS, LARGEST_RATIO, LEAST_RATIO
from harness.experiments.goodput.records import (
    PARTS,
    GoodputRecord,
    PredictionRecord,
    ScheduleRecord,
)


def _share(name: str) -> Callable[[GoodputRow], str]:
    """Return how a table shows a share of the time."""

    def shown(row: GoodputRow) -> str:
        share = getattr(row, name)
        return text.NOTHING if share is None else f"{share:.1%}"

    return shown


def _ratio(name: str) -> Callable[[GoodputRow], str]:
    """Return how a table shows a predicted over the measured loss."""

    def shown(row: GoodputRow) -> str:
        ratio = getattr(row, name)
        if ratio is None:
            return text.NOTHING
        return f"{ratio.value:.2f} [{ratio.low:.2f}–{ratio.high:.2f}]"

    return shown


@dataclass(kw_only=True)
class GoodputRow(Row):
    """One case: the share of the time that was lost to kills and checkpoints, and its prediction.

    The interval of a ratio holds 90 % of the draws of the prediction.
    """

    covers: str = identity_column("what comes back")
    mtbf: int | None = column(
        "the mean time between two kills, as a multiple of the time of one way back", heading="MTBF"
    )
    interval: str = column(
        "the interval between two checkpoints against the advised one",
        heading="interval",
        default="",
        left_aligned=True,
    )
    interval_steps: int | None = column("the steps between two checkpoints", heading="steps")
    kills: int | None = column("how many ranks were killed", heading="kills")
    mtbf_s: float | None = column("the mean seconds between two kills")
    wall_s: float | None = column("the seconds from the first start to the end")
    step_s: float | None = column("the mean seconds of an undisturbed step")
    steps_kept: int | None = column("the steps whose result was kept at the end")
    steps_done: int | None = column("all steps that were done")
    lost: float | None = column(
        "the share of the time that went into no step that was kept",
        heading="lost time",
        text=_share("lost"),
    )
    checkpoints: float | None = column(
        "the share that went into stalls, waits and slowdown",
        heading="checkpoints",
        text=_share("checkpoints"),
    )
    recompute: float | None = column(
        "the share that went into steps that a kill undid or cut short",
        heading="recompute",
        text=_share("recompute"),
    )
    detect: float | None = column(
        "the share until the launcher had ended", heading="detect", text=_share("detect")
    )
    restart: float | None = column(
        "the share until the processes were there again", heading="restart", text=_share("restart")
    )
    restore: float | None = column(
        "the share until rank 0 had its values back", heading="restore", text=_share("restore")
    )
    predicted: Estimate | None = column("the predicted share of lost time, from the control")
    ratio: Estimate | None = column(
        "the predicted over the measured loss", heading="predicted/lost", text=_ratio("ratio")
    )
    without_recomputation: Estimate | None = column(
        "the same of a model that knows no recomputation",
        heading="without recomputation",
        text=_ratio("without_recomputation"),
    )
    without_lag: Estimate | None = column(
        "the same of a model whose checkpoints are durable at once",
        heading="without lag",
        text=_ratio("without_lag"),
    )
    without_slowdown: Estimate | None = column(
        "the same of a model whose checkpoints do not slow down training",
        heading="without slowdown",
        text=_ratio("without_slowdown"),
    )
    holds: bool | None = column(
        f"whether the interval of the ratio lies within {LEAST_RATIO} to {LARGEST_RATIO}",
        heading="holds",
        text=lambda row: {True: "yes", False: "no", None: text.NOTHING}[row.holds],
        left_aligned=True,
    )

    @property
    def verdict(self) -> str:
        """The row in one word."""
        if self.holds is None:
            return self.status
        return "holds" if self.holds else "does not hold"


_RATIOS = {
    "whole": "ratio",
    "no recomputation": "without_recomputation",
    "no lag": "without_lag",
    "no slowdown": "without_slowdown",
}
"""The column of each variant of the model."""


def rows(items: Sequence[Wanted], records: RunRecords) -> list[GoodputRow]:
    """Derive the row of every case."""
    return [_row(item, records) for item in items]


def is_within(ratio: Estimate) -> bool:
    """Return whether a prediction with its interval is near enough to what was measured."""
    return ratio.low >= LEAST_RATIO and ratio.high <= LARGEST_RATIO


def _row(item: Wanted, records: RunRecords) -> GoodputRow:
    row = GoodputRow(**identity(item))
    row.mtbf = item.case.settings["mtbf"]
    row.interval = item.case.settings["interval"]
    if row.fail(records.failures(item.case.id)):
        return row
    schedule = records.last(ScheduleRecord, item.case.id)
    predicted = records.last(PredictionRecord, item.case.id)
    measured = records.last(GoodputRecord, item.case.id)
    if schedule is None or predicted is None or measured is None:
        row.interrupt()
        return row
    row.mtbf_s = schedule.mtbf_ns / 1e9
    row.interval_steps = schedule.interval_steps
    _add_measured(row, measured)
    for variant in predicted.lost:
        lost = Estimate(variant.median, variant.low, variant.high)
        if variant.variant == "whole":
            row.predicted = lost
        setattr(row, _RATIOS[variant.variant], _over(lost, measured.lost))
    if schedule.interval_steps > round(schedule.advised_steps * INTERVALS[row.interval]):
        row.remarks.append(
            f"the interval is {schedule.interval_steps} steps, because fewer would leave no step "
            "undisturbed"
        )
    if measured.step_of == "control":
        row.remarks.append(
            "an undisturbed step is that of the control, because the job's checkpoints left hardly "
            "any"
        )
    due, made = len(schedule.kills_ns), len(measured.kills_ns)
    if made < due:
        row.marks.append(f"{made} of {due} kills were made, so its prediction is not judged")
    elif predicted.kills < KILLS:
        row.marks.append(
            f"the control came back from {predicted.kills} of {KILLS} kills, so its prediction is "
            "not judged"
        )
    else:
        row.holds = row.ratio is not None and is_within(row.ratio)
    return row


def _add_measured(row: GoodputRow, measured: GoodputRecord) -> None:
    row.kills = len(measured.kills_ns)
    row.wall_s = measured.wall_ns / 1e9
    row.step_s = measured.step_ns / 1e9
    row.steps_kept = measured.steps
    row.steps_done = measured.steps_done
    row.lost = measured.lost
    for part in PARTS:
        setattr(row, part, getattr(measured, f"{part}_ns") / measured.wall_ns)


def _over(lost: Estimate, measured: float) -> Estimate | None:
    """Return a predicted over the measured loss; None where nothing was lost."""
    if measured <= 0.0:
        return None
    return Estimate(lost.value / measured, lost.low / measured, lost.high / measured)
