"""How precise a run's rows are, against what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.analysis import comparison
from harness.analysis.comparison import STALL_FLOOR_S
from harness.analysis.cost import CostRow
from harness.analysis.row import Row, group_title, listed
from harness.analysis.runs import ReadRun
from harness.analysis.train import TrainRow


@dataclass(frozen=True)
class Precision:
    """The least precise figure of a row: half of its interval's width, as a share of its value (of an overhead: of training)."""

    name: str
    cases: tuple[str, ...]
    figure: str
    half_width: float


def of_run(run: ReadRun) -> list[Precision]:
    """The precision of every row that took samples; of a run with arms, that of every ratio between them.

    It is that of the least precise among the share of the ceiling, the stall (where it is above a millisecond) and the load, or of
    the overhead of training.
    """
    return list(_of_arms(run) if comparison.has_arms(run) else _of_rows(run))


def too_wide(run: ReadRun, wanted: float) -> set[str]:
    """The identifiers of the cases that are less precise than wanted."""
    return {case for row in of_run(run) if row.half_width > wanted for case in row.cases}


def notes(run: ReadRun) -> list[str]:
    """Which rows are as precise as the run was asked to be, and which were not yet when its time was over."""
    goal: dict[str, Any] = run.stored.header.get("goal") or {}
    if not goal:
        return []
    asked, found = f"±{_percent(goal['precision'])} was asked for", of_run(run)
    reached = [row.name for row in found if row.half_width <= goal["precision"]]
    missed = [f"{row.name} ({row.figure} ±{_percent(row.half_width)})" for row in found if row.half_width > goal["precision"]]
    texts = [f"{asked} and reached by {listed(reached)}."] if reached else []
    over = f"when the time of {goal['budget_s'] / 60:g} min was over"
    return texts + ([f"{asked} and not reached {over} by {listed(missed)}."] if missed else [])


def _of_rows(run: ReadRun) -> Iterator[Precision]:
    for item, row in zip(run.stored.plan, run.rows, strict=True):
        widths = _widths(row)
        if widths:
            figure = max(widths, key=lambda name: widths[name])
            yield Precision(f"{row.framework} {row.method} on {group_title(row)}", (item.case.id,), figure, widths[figure])


def _of_arms(run: ReadRun) -> Iterator[Precision]:
    for row in comparison.between_arms(run).rows:
        worst = max(row.figures, key=lambda figure: figure.ratio.half_width, default=None)
        if worst is not None:
            yield Precision(f"{row.name} on {row.group}", row.cases, worst.name, worst.ratio.half_width)


def _widths(row: Row) -> dict[str, float]:
    """The half-widths of a row's figures; none where nothing was measured."""
    if isinstance(row, TrainRow) and row.overhead_share is not None:
        return {"overhead": 0.5 * (row.overhead_share.high - row.overhead_share.low)}
    if not isinstance(row, CostRow):
        return {}
    stall = row.stall_s if row.stall_s and row.stall_s.value > STALL_FLOOR_S else None
    figures = {"share of ceiling": row.write_efficiency, "stall": stall, "load": row.load_s}
    return {name: estimate.half_width for name, estimate in figures.items() if estimate is not None}


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
