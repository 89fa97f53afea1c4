"""The predictions of lost time that real kills have judged, from the runs of the suite goodput."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from harness.analysis.statistics import Estimate
from harness.docs.markdown import folded, table
from harness.docs.reference import NOT_STORED, runs
from harness.docs.row_tables import cell, rows_where, sources
from harness.experiments.goodput.rows import GoodputRow, is_within

_SUITE = "goodput"
_CELLS, _MUST_HOLD = 18, 16
_HEADINGS = (
    "MTBF",
    "interval",
    "kills",
    "lost time",
    "predicted/lost",
    "without recomputation",
    "without lag",
    "without slowdown",
    "holds",
)
_PARTS = (
    *("MTBF", "interval", "lost time"),
    *("checkpoints", "recompute", "detect", "restart", "restore"),
)


def goodput_cells() -> str:
    """Return every cell with its prediction, and how many predictions hold.

    The nine cells of a framework take hours, so a run may hold some of them. Of a cell that was
    measured more than once, the newest run counts in which enough kills came to judge it. Another
    table has what came of it before.
    """
    of_suite = [run for run in runs() if run.stored.header["suite"] == _SUITE]
    if not of_suite:
        return NOT_STORED
    found: dict[tuple[object, ...], list[GoodputRow]] = {}
    for run in sorted(of_suite, key=lambda run: run.name):
        for row in rows_where(run, _is_judged):
            found.setdefault(_cell(row), []).append(row)
    newest = [rows[-1] for rows in found.values()]
    earlier = list(itertools.chain.from_iterable(rows[:-1] for rows in found.values()))
    parts = [
        _summary(newest),
        _table(newest, _HEADINGS),
        folded("Where the lost time went", _table(newest, _PARTS)),
    ]
    if earlier:
        measured_before = f"{len(earlier)} of the cells were measured before"
        parts.append(folded(measured_before, _table(earlier, _HEADINGS)))
    return "\n\n".join([*parts, sources(of_suite)])


def _table(rows: Sequence[GoodputRow], headings: Sequence[str]) -> str:
    lines = []
    for row in rows:
        cells = [cell(row, heading) for heading in headings]
        lines.append([row.framework, row.workload, row.method, *cells])
    return table(("framework", "workload", "method", *headings), lines)


def _is_judged(row: GoodputRow) -> bool:
    """Return whether a prediction holds or not, and not whether too few kills came to tell."""
    return row.holds is not None


def _cell(row: GoodputRow) -> tuple[object, ...]:
    """Return what names a cell of the suite."""
    return (row.framework, row.workload, row.method, row.mtbf, row.interval)


def _summary(rows: Sequence[GoodputRow]) -> str:
    """Return how many predictions hold, with and without each term."""
    whole = sum(row.holds is True for row in rows)
    without = {
        "recomputation": [row.without_recomputation for row in rows],
        "lag": [row.without_lag for row in rows],
        "slowdown": [row.without_slowdown for row in rows],
    }
    parts = [f"without {term} {_holding(ratios)}" for term, ratios in without.items()]
    said = f"Of {len(rows)} predictions {whole} hold, {', '.join(parts)}."
    if len(rows) < _CELLS:
        return (
            f"{said} The check needs all {_CELLS} cells. {_MUST_HOLD} of them must hold, and fewer "
            "than that without recomputation."
        )
    must_hold = math.ceil(len(rows) * _MUST_HOLD / _CELLS)
    is_passed = whole >= must_hold > _holding(without["recomputation"])
    verdict = "is passed" if is_passed else "is not passed"
    return (
        f"{said} The check {verdict}: {must_hold} of {len(rows)} must hold, and fewer without "
        "recomputation."
    )


def _holding(ratios: Sequence[Estimate | None]) -> int:
    return sum(ratio is not None and is_within(ratio) for ratio in ratios)
