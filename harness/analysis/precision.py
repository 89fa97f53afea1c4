"""How precise a run's rows are, against what was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.analysis import comparison
from harness.analysis.ratios import half_width
from harness.analysis.row import group_title, listed
from harness.analysis.runs import ReadRun
from harness.analysis.statistics import CONFIDENCE


@dataclass(frozen=True)
class Precision:
    """The least precise figure of a row, and half of its interval's width as a share of its value."""

    name: str
    cases: tuple[str, ...]
    figure: str
    half_width: float


def of_run(run: ReadRun) -> list[Precision]:
    """The precision of every row that took samples; of a run with arms, that of every ratio between them.

    It is that of the least precise figure of those that `comparison` knows, by Student's interval
    over the processes: the bootstrap of a table is narrow by chance now and then where processes
    are few, and who stops at the first such moment is deceived.
    """
    return list(_of_arms(run) if comparison.has_arms(run) else _of_rows(run))


def too_wide(run: ReadRun, wanted: float) -> set[str]:
    """The identifiers of the cases that are less precise than wanted."""
    return {case for row in of_run(run) if row.half_width > wanted for case in row.cases}


def notes(run: ReadRun) -> list[str]:
    """Which rows are as precise as the run was asked to be, and which were not in the time it had."""
    goal: dict[str, Any] = run.stored.header.get("goal") or {}
    if not goal:
        return []
    asked, found = f"±{_percent(goal['precision'])} was asked for", of_run(run)
    reached = [row.name for row in found if row.half_width <= goal["precision"]]
    missed = [
        f"{row.name} ({row.figure} ±{_percent(row.half_width)})"
        for row in found
        if row.half_width > goal["precision"]
    ]
    texts = [f"{asked} and reached by {listed(reached)}."] if reached else []
    allowed = f"within {goal['budget_s'] / 60:g} min"
    return texts + ([f"{asked} {allowed} and not reached by {listed(missed)}."] if missed else [])


def _of_rows(run: ReadRun) -> Iterator[Precision]:
    rows = {item.case.id: row for item, row in zip(run.stored.plan, run.rows, strict=True)}
    for case, figures in comparison.costs(run):
        widths = {name: half_width(samples, CONFIDENCE) for name, samples in figures.items()}
        if widths:
            figure = max(widths, key=lambda name: widths[name])
            title = f"{case.framework} {case.method} on {group_title(rows[case.id])}"
            yield Precision(title, (case.id,), figure, widths[figure])


def _of_arms(run: ReadRun) -> Iterator[Precision]:
    for row in comparison.between_arms(run).rows:
        worst = max(row.figures, key=lambda figure: figure.ratio.half_width, default=None)
        if worst is not None:
            yield Precision(
                f"{row.name} on {row.group}", row.cases, worst.name, worst.ratio.half_width
            )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if math.isfinite(share) else "any share: one process alone"
