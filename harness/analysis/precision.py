"""The precision of a run's rows, beside the one that the run was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis import comparison
from harness.analysis.columns import columns_of
from harness.analysis.compared import Cost
from harness.analysis.ratios import half_width
from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.analysis.runs import ReadRun
from harness.analysis.statistics import CONFIDENCE
from harness.analysis.text import listed
from harness.run.plan import PlannedCase


@dataclass(frozen=True)
class Precision:
    """The precision of a row, which is that of its least precise metric.

    `half_width` is half of the width of the metric's interval as a share of its value.
    """

    name: str
    cases: tuple[str, ...]
    metric: str
    half_width: float

    @property
    def in_words(self) -> str:
        """The metric with its precision."""
        return f"{self.metric} ±{_percent(self.half_width)}"


def of_run(run: ReadRun) -> list[Precision]:
    """Return the precision of every row that took samples.

    The metrics are those that `comparison` tests. In a run with arms it is the precision of their
    ratios. The intervals are Student's over the processes. The bootstrap of a table is narrow by
    chance now and then where processes are few, so a run that stopped at the first such moment
    would look more precise than it is.
    """
    return list(_of_arms(run) if comparison.has_arms(run) else _of_rows(run))


def is_measurable(plan: Sequence[PlannedCase]) -> bool:
    """Return whether any row of a plan will have a cost, of which a precision can be told."""
    classes = {type(row) for row in rows([Wanted.of(item) for item in plan], [])}
    columns = [column for row_class in classes for column in columns_of(row_class).values()]
    return any(isinstance(column.compared, Cost) for column in columns)


def too_wide(run: ReadRun, wanted: float) -> set[str]:
    """Return the identifiers of the cases that are less precise than wanted."""
    cases: set[str] = set()
    for row in of_run(run):
        if row.half_width > wanted:
            cases.update(row.cases)
    return cases


def notes(run: ReadRun) -> list[str]:
    """Return which rows are as precise as the run was asked to be, and which are not."""
    goal: dict[str, Any] = run.stored.header.get("goal") or {}
    if not goal:
        return []
    precision, budget_s = goal["precision"], goal["budget_s"]
    found = of_run(run)
    reached = [row.name for row in found if row.half_width <= precision]
    missed = [f"{row.name} ({row.in_words})" for row in found if row.half_width > precision]
    asked = f"±{_percent(precision)} was asked for"
    texts = []
    if reached:
        texts.append(f"{asked} and reached by {listed(reached)}.")
    if missed:
        texts.append(f"{asked} within {budget_s / 60:g} min and not reached by {listed(missed)}.")
    return texts


def _of_rows(run: ReadRun) -> Iterator[Precision]:
    for row, metrics in comparison.costs(run):
        widths = {name: half_width(samples, CONFIDENCE) for name, samples in metrics.items()}
        if not widths:
            continue
        widest = max(widths, key=lambda name: widths[name])
        title = f"{row.name} on {row.group}"
        yield Precision(title, (row.case.id,), widest, widths[widest])


def _of_arms(run: ReadRun) -> Iterator[Precision]:
    for row in comparison.between_arms(run).rows:
        widest = max(row.metrics, key=lambda metric: metric.ratio.half_width, default=None)
        if widest is None:
            continue
        title = f"{row.name} on {row.group}"
        yield Precision(title, row.cases, widest.name, widest.ratio.half_width)


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "any share: one process alone"
    return f"{100 * share:.3g} %"
