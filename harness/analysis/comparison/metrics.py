"""The metrics of a row: which are tested, what drifts meanwhile, and their ratios."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from harness.analysis import ratios
from harness.analysis.columns import columns_of
from harness.analysis.compared import Circumstances, Controls, Cost, Worth
from harness.analysis.comparison.results import Metric
from harness.analysis.comparison.sides import ARMS, SideRow, side
from harness.analysis.comparison.verdicts import verdict
from harness.analysis.row import Row
from harness.analysis.runs import ReadRun
from harness.analysis.samples import SampleTable
from harness.analysis.statistics import Samples
from harness.wire.records import CalibrationRecord


@dataclass(frozen=True)
class MeasuredCost:
    """A cost that a row has measured, with all of its samples."""

    cost: Cost
    row: SideRow
    all_samples: pd.DataFrame

    @cached_property
    def counting(self) -> pd.DataFrame:
        """The samples that count: all but the warm-ups.

        The disturbed ones count too. A process has too few samples to spare any, its median is safe
        from one bad one, and without them the medians of two like processes differ by more.
        """
        return self.all_samples[~self.all_samples["warmup"]]

    @cached_property
    def samples(self) -> Samples:
        """The costs of the samples, with the process that each was measured in."""
        costs = np.asarray(self.cost.cost(self.counting), dtype=np.float64)
        processes = np.asarray(self.counting["process"], dtype=np.int64)
        return Samples(costs, processes)

    @cached_property
    def circumstances(self) -> Circumstances:
        """The circumstances under which the samples were taken."""
        calibrations = self.row.run.records.all(CalibrationRecord)
        # An earlier one may be only a trial of another run's requests.
        last = calibrations[-1] if calibrations else None
        return Circumstances(self.row.row, self.all_samples, last)


@dataclass(frozen=True)
class LeftOut:
    """The reason why a metric that both sides have is not compared, and what to do about it."""

    reason: str
    advice: str = ""


@dataclass(frozen=True)
class MetricPair:
    """One metric on both sides.

    `drift` is the logarithm of how far its unit may have moved from one side to the other, and
    `worth` says which ratios matter.
    """

    cost: Cost
    base: Samples
    head: Samples
    drift: float
    worth: Worth

    def tested(self, paired: bool, confidence: float) -> Metric:
        """Return the ratio with its interval and verdict."""
        if paired:
            ratio = ratios.of_pairs(self.base, self.head, confidence)
        else:
            ratio = ratios.of_groups(self.base, self.head, confidence, self.drift)
        return Metric(
            name=self.cost.name,
            unit=self.cost.unit,
            base=float(np.median(self.base.values)),
            head=float(np.median(self.head.values)),
            ratio=ratio,
            verdict=verdict(ratio, self.worth),
            drift=self.drift,
            worth=self.worth,
        )


@dataclass(frozen=True)
class MatchedRow:
    """A row that both sides have, with its metrics: those to test, and those not compared."""

    base: SideRow
    head: SideRow
    pairs: Sequence[MetricPair]
    left_out: Mapping[str, LeftOut]


def matched(base: SideRow, head: SideRow, paired: bool) -> MatchedRow:
    """Return a row with the metrics that both sides have.

    With `paired`, the processes of the two sides ran in turn, so nothing drifted between them.
    """
    pairs = []
    left_out = {}
    in_base = measured_costs(base)
    for name, of_head in measured_costs(head).items():
        of_base = in_base.get(name)
        if of_base is None:
            continue
        unlike = _unlike(of_base, of_head)
        if unlike is None:
            pairs.append(_pair(of_base, of_head, paired))
        else:
            left_out[name] = unlike
    return MatchedRow(base, head, pairs, left_out)


def measured_costs(row: SideRow) -> dict[str, MeasuredCost]:
    """Return the costs that a row has samples of, by name, in the order of its columns.

    A row that did not go well has none. Raises TypeError where a column that is declared as a cost
    does not name its samples.
    """
    if row.row.status != "ok":
        return {}
    row_class = type(row.row)
    measured = {}
    for cost, table in _declared_costs(row.row):
        samples = row.run.records.samples_of(table, row_class, row.case.id)
        samples = row.row.counted(table, samples)
        if not samples["warmup"].all():
            measured[cost.name] = MeasuredCost(cost, row, samples)
    return measured


def costs(run: ReadRun) -> list[tuple[SideRow, dict[str, Samples]]]:
    """Return every row of a run with the samples of its costs, by the metric's name."""
    found = []
    for row in _all_rows(run):
        samples = {name: measured.samples for name, measured in measured_costs(row).items()}
        found.append((row, samples))
    return found


def has_settled_ceilings(run: ReadRun) -> bool:
    """Return whether all ceilings of a run were taken as those of this version are."""
    for row in _all_rows(run):
        for measured in measured_costs(row).values():
            for condition in measured.cost.conditions:
                if condition.of_now is None:
                    continue
                if condition.value(measured.circumstances) not in (None, condition.of_now):
                    return False
    return True


def _declared_costs(row: Row) -> Iterator[tuple[Cost, SampleTable]]:
    """Yield the costs that a row is tested by, with the tables of their samples."""
    row_class = type(row)
    for name, column in columns_of(row_class).items():
        cost = column.compared
        if not isinstance(cost, Cost) or not cost.applies_to(row):
            continue
        if column.of is None:
            raise TypeError(f"column {name!r} of {row_class.__name__} is a cost, so it needs 'of'")
        yield cost, column.of


def _all_rows(run: ReadRun) -> list[SideRow]:
    rows: list[SideRow] = []
    for arm in ("", *ARMS):
        rows += side(run, arm).rows.values()
    return rows


def _unlike(base: MeasuredCost, head: MeasuredCost) -> LeftOut | None:
    """Return why a metric's ratio would say nothing; None where the two sides are alike."""
    for condition in head.cost.conditions:
        before = condition.value(base.circumstances)
        now = condition.value(head.circumstances)
        if before is not None and now is not None and before != now:
            return LeftOut(condition.why(before, now), condition.advice)
    if base.cost != head.cost:
        return LeftOut(f"it was measured in {base.cost.unit} and is measured in {head.cost.unit}")
    return None


def _pair(base: MeasuredCost, head: MeasuredCost, paired: bool) -> MetricPair:
    controls = _controls(base, head)
    drift = 0.0 if paired else head.cost.drift(controls)
    worth = head.cost.worth(base.counting, head.counting)
    return MetricPair(head.cost, base.samples, head.samples, drift, worth)


def _controls(base: MeasuredCost, head: MeasuredCost) -> Controls:
    """Return how far the copy in memory and the write ceiling moved from one side to the other."""
    copied = _moved(base.row.row.copy_s, head.row.row.copy_s)
    written = _moved(base.row.write_ceiling_s, head.row.write_ceiling_s)
    base_median = float(np.median(base.samples.values))
    return Controls(copied, max(copied, written), base_median, base.row.row)


def _moved(before_s: float | None, after_s: float | None) -> float:
    """Return the absolute logarithm of a ratio; 0 where a side does not know it."""
    return abs(math.log(after_s / before_s)) if before_s and after_s else 0.0
