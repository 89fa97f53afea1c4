"""Comparing two runs, or the two arms of one."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.comparison import facts, metrics, remarks
from harness.analysis.comparison.metrics import MatchedRow
from harness.analysis.comparison.results import ComparedRow, Comparison
from harness.analysis.comparison.sides import (
    ARMS,
    Side,
    SideRow,
    has_arms,
    key,
    missing,
    side,
)
from harness.analysis.runs import ReadRun
from harness.analysis.statistics import simultaneous
from harness.run.manifest import differences
from harness.run.plan import PlannedCase
from harness.run.stored import run_argument

CONFIDENCE = 0.97
"""The confidence of all intervals together.

By chance, 1.5 % of pairs of like runs have a metric whose interval lies above 1.
"""


class Unlike(ValueError):
    """Two runs that cannot be compared, with the reason."""


def of_runs(base: ReadRun, head: ReadRun) -> Comparison:
    """Compare two runs.

    Raises Unlike where a run has arms or is not finished, where the machines are unlike, and where
    the runs have no row in common.
    """
    for run in (base, head):
        _require_no_arms(run)
        _require_finished(run)
    unlike = differences(base.stored.manifest, head.stored.manifest)
    if unlike:
        raise Unlike(
            f"{base.name} and {head.name} were not measured alike ({', '.join(unlike)}), "
            "so their numbers cannot be compared"
        )
    notes = [
        *remarks.packages(remarks.versions(base), remarks.versions(head)),
        *remarks.mpirun(base, head),
    ]
    return _compared(side(base), side(head), paired=False, notes=notes)


def of_arms(run: ReadRun) -> Comparison:
    """Compare the two arms of a run. Raises Unlike where it has none or is not finished."""
    if not has_arms(run):
        raise Unlike(f"run {run.name} has no two arms: name a second run to compare it with")
    _require_finished(run)
    return between_arms(run)


def between_arms(run: ReadRun) -> Comparison:
    """Compare the two arms of a run as far as they have been measured."""
    base, head = (_arm(run, arm) for arm in ARMS)
    notes = remarks.packages(*(remarks.versions(run, arm) for arm in ARMS))
    return _compared(base, head, paired=True, notes=notes)


def have_common_rows(base: Sequence[PlannedCase], head: Sequence[PlannedCase]) -> bool:
    """Return whether two plans have a row that can be compared."""
    base_keys = {key(planned.case) for planned in base}
    return any(key(planned.case) in base_keys for planned in head)


def is_finished(run: ReadRun) -> bool:
    """Return whether every row has its result. An interrupted row is neither slower nor worse."""
    return not any(row.is_unfinished for row in run.rows)


def _arm(run: ReadRun, arm: str) -> Side:
    """Return one arm of a run, named after what the user asked for."""
    described = run.stored.header["arms"].get(arm)
    if described is None:
        return side(run, arm, arm)
    asked = " ".join(described["asked"]) or "."
    return side(run, arm, f"{arm} ({asked})")


def _require_no_arms(run: ReadRun) -> None:
    if has_arms(run):
        raise Unlike(
            f"run {run.name} has two arms, so it is only compared with itself: "
            f"ckptbench compare {run_argument(run.stored.folder)}"
        )


def _require_finished(run: ReadRun) -> None:
    if not is_finished(run):
        name = run_argument(run.stored.folder)
        raise Unlike(f"run {run.name} was interrupted; go on with: ckptbench run --resume {name}")


def _compared(base: Side, head: Side, paired: bool, notes: Sequence[str]) -> Comparison:
    """Compare the rows that both sides have. Raises Unlike where there are none."""
    matched = []
    for name, base_row in base.rows.items():
        if name in head.rows:
            matched.append(metrics.matched(base_row, head.rows[name], paired))
    if not matched:
        raise Unlike(f"{base.name} and {head.name} have no row in common")
    tests = sum(len(row.pairs) for row in matched)
    confidence = simultaneous(CONFIDENCE, tests)
    rows = [_compared_row(row, paired, confidence) for row in matched]
    gone, _ = missing(base, head)
    rows += [_row_that_is_gone(row) for row in gone]
    all_notes = [*notes, *_notes(base, head, matched)]
    return Comparison(base.name, head.name, paired, tests, tuple(rows), tuple(all_notes))


def _notes(base: Side, head: Side, matched: Sequence[MatchedRow]) -> list[str]:
    notes = remarks.of_left_out_metrics(matched)
    for row in matched:
        notes += remarks.of_row(row)
    return notes + remarks.of_rows_of_one_side(base, head)


def _compared_row(row: MatchedRow, paired: bool, confidence: float) -> ComparedRow:
    changes = facts.changes(row.base, row.head)
    return ComparedRow(
        group=row.head.group,
        name=row.head.name,
        cases=(row.base.case.id, row.head.case.id),
        metrics=tuple(pair.tested(paired, confidence) for pair in row.pairs),
        faults=tuple(change.sentence for change in changes if change.is_worse),
        gains=tuple(change.sentence for change in changes if not change.is_worse),
        left_out={name: left_out.reason for name, left_out in row.left_out.items()},
        failed_on_both=facts.failed_on_both(row.base, row.head),
    )


def _row_that_is_gone(row: SideRow) -> ComparedRow:
    return ComparedRow(
        group=row.group,
        name=row.name,
        cases=(row.case.id,),
        metrics=(),
        faults=("the row is gone",),
        gains=(),
    )
