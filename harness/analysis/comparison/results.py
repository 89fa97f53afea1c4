"""The results of a comparison: metrics, rows, and the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness.analysis.compared import Worth
from harness.analysis.comparison.verdicts import USUAL, Verdict
from harness.analysis.statistics import Estimate

_OF_SAVES_AND_LOADS = frozenset({"durable", "load"})


@dataclass(frozen=True)
class Metric:
    """One metric of a row on both sides.

    `base` and `head` are medians in `unit`, and `ratio` is head over base with its interval.
    `drift` is the logarithm of the factor by which the interval was widened at each end, because
    the machine was another one when the head was measured. `worth` holds the verdict's limits.
    """

    name: str
    unit: str
    base: float
    head: float
    ratio: Estimate
    verdict: Verdict
    drift: float = 0.0
    worth: Worth = USUAL


@dataclass(frozen=True)
class ComparedRow:
    """The result of one row.

    `cases` are the identifiers of its cases, of the base and of the head. `faults` are losses of
    correctness and `gains` the opposite, a sentence each. `left_out` holds the metrics that both
    sides have and that are not compared, with the reason. With `failed_on_both`, neither side has
    anything to compare.
    """

    group: str
    name: str
    cases: tuple[str, ...]
    metrics: tuple[Metric, ...]
    faults: tuple[str, ...]
    gains: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    failed_on_both: bool = False

    @property
    def regressed(self) -> bool:
        """Return whether anything of the row is worse."""
        return bool(self.faults) or any(metric.verdict == "slower" for metric in self.metrics)


@dataclass(frozen=True)
class Comparison:
    """Two sides and the results of their rows.

    `tests` is the number of metrics that the intervals are corrected for. With `paired`, processes
    of the two sides ran in turn.
    """

    base: str
    head: str
    paired: bool
    tests: int
    rows: tuple[ComparedRow, ...]
    remarks: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Return whether any row is worse."""
        return any(row.regressed for row in self.rows)

    @property
    def is_hollow(self) -> bool:
        """Return whether neither a save nor a load was compared, although there were some.

        A metric was left out, or every row failed on both sides. A save is compared by its time
        until it is durable, and a load in ceilings or in seconds.
        """
        on_disk = [metric for metric in self.metrics() if metric.name in _OF_SAVES_AND_LOADS]
        all_failed = all(row.failed_on_both for row in self.rows)
        return not on_disk and (all_failed or any(row.left_out for row in self.rows))

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of all rows."""
        for row in self.rows:
            yield from row.metrics

    def counts(self) -> dict[Verdict, int]:
        """Return how many metrics got each verdict."""
        verdicts = [metric.verdict for metric in self.metrics()]
        every: tuple[Verdict, ...] = ("faster", "same", "slower", "inconclusive")
        return {verdict: verdicts.count(verdict) for verdict in every}
