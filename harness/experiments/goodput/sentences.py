"""Experiment `goodput` in words: how many predictions hold, and what each term is worth."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.claims import Claims, Runs, certain_rows
from harness.analysis.row import Naming
from harness.analysis.statistics import Estimate
from harness.experiments.goodput.rows import GoodputRow, is_within


def meaning(rows: Sequence[GoodputRow], naming: Naming) -> str:
    """Return how many predictions hold, with and without each term of the model."""
    judged = [row for row in rows if row.holds is not None]
    if not judged:
        return "No prediction was judged."
    holding = sum(bool(row.holds) for row in judged)
    said = [
        f"The predicted loss of time holds in {holding} of {len(judged)} cases. A model without "
        f"recomputation holds in {_count(judged, 'without_recomputation')}, one without lag in "
        f"{_count(judged, 'without_lag')}, and one without slowdown in "
        f"{_count(judged, 'without_slowdown')}."
    ]
    return " ".join(said)


def claims(runs: Runs) -> Claims:
    """Return how many predictions of lost time hold."""
    rows = certain_rows(runs, GoodputRow)
    judged = [row for row in rows if row.holds is not None]
    if not judged:
        return Claims()
    holding = sum(bool(row.holds) for row in judged)
    words = f"{holding} of {len(judged)} predictions of the time lost to kills hold"
    return Claims(training=[words])


def _count(rows: Sequence[GoodputRow], name: str) -> int:
    """Return in how many rows a variant of the model holds."""
    ratios: list[Estimate | None] = [getattr(row, name) for row in rows]
    return sum(ratio is not None and is_within(ratio) for ratio in ratios)
