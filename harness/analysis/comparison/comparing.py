"""Comparing two runs, or the two arms of one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from harness.analysis.comparison import facts, metrics, remarks
from harness.analysis.comparison.metrics import RowMetrics
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
from harness.run.manifest import comparable
from harness.run.plan import PlannedCase

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
        if has_arms(run):
            raise Unlike(
                f"run {run.name} has two arms, so it is only compared with itself: "
                f"ckptbench compare {run.name}"
            )
        _require_finished(run)
    differences = comparable(base.stored.manifest, head.stored.manifest)
    if differences:
        raise Unlike(
            f"{base.name} and {head.name} were not measured alike ({', '.join(differences)}), "
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


def _require_finished(run: ReadRun) -> None:
    if not is_finished(run):
        raise Unlike(
            f"run {run.name} was interrupted; go on with: ckptbench run --resume {run.name}"
        )


def _compared(base: Side, head: Side, paired: bool, notes: Sequence[str]) -> Comparison:
    """Compare the rows that both sides have, and say which ones only one side has."""
    pairs = [(row, head.rows[name]) for name, row in base.rows.items() if name in head.rows]
    if not pairs:
        raise Unlike(f"{base.name} and {head.name} have no row in common")
    of_rows = [metrics.of_row(*pair, paired) for pair in pairs]
    tests = sum(len(of_row.pairs) for of_row in of_rows)
    confidence = simultaneous(CONFIDENCE, tests)
    rows = []
    row_notes = []
    for pair, of_row in zip(pairs, of_rows, strict=True):
        rows.append(_compared_row(*pair, of_row, paired, confidence))
        row_notes += remarks.of_row(*pair, of_row)
    gone, not_asked_of_head = missing(base, head)
    added, not_asked_of_base = missing(head, base)
    rows += [_row_that_is_gone(row) for row in gone]
    all_notes = itertools.chain(
        notes,
        remarks.of_left_out_metrics(of_rows),
        row_notes,
        remarks.of_left_out_rows(base, head, not_asked_of_head),
        remarks.of_left_out_rows(head, base, not_asked_of_base),
        remarks.of_new_rows(head, added),
    )
    return Comparison(base.name, head.name, paired, tests, tuple(rows), tuple(all_notes))


def _compared_row(
    base: SideRow, head: SideRow, of_row: RowMetrics, paired: bool, confidence: float
) -> ComparedRow:
    changes = facts.changes(base, head)
    left_out = {name: left_out.reason for name, left_out in of_row.left_out.items()}
    return ComparedRow(
        group=head.group,
        name=head.name,
        cases=(base.case.id, head.case.id),
        metrics=tuple(pair.tested(paired, confidence) for pair in of_row.pairs),
        faults=tuple(change.sentence for change in changes if change.is_worse),
        gains=tuple(change.sentence for change in changes if not change.is_worse),
        left_out=left_out,
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
