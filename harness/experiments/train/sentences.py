"""Experiment `train` in words: which method slows training down least."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.claims import (
    Claims,
    Runs,
    Told,
    by_framework,
    by_method,
    rows_of_kind,
    whole,
)
from harness.analysis.row import Naming
from harness.analysis.text import listed, spread_duration
from harness.experiments.train import interval_in_words
from harness.experiments.train.rows import TrainRow

_LONGEST = float("inf")
_MATTERS_ABOVE = 0.1  # of a step


def meaning(rows: Sequence[TrainRow], naming: Naming) -> str:
    """Return which method slows training down least, and where the loop waits for a checkpoint."""
    good = [row for row in rows if row.is_clean and row.overhead_s]
    if not good:
        return "No method's training could be timed."
    candidates = whole(good)
    best = min(candidates, key=_overhead)
    said = [
        f"Training loses least with {_name(naming, best)}: {spread_duration(best.overhead_s)} a "
        "checkpoint."
    ]
    safe = min(candidates, key=_overhead_until_flushed)
    if safe is not best:
        said.append(f"With what flushing the files still takes, it is {_name(naming, safe)}.")
    pressed = [_name(naming, row) for row in good if _waits(row)]
    if pressed:
        said.append(f"With {listed(pressed)} the loop waits for one checkpoint before the next.")
    return " ".join(said)


def claims(runs: Runs) -> Claims:
    """Return with which method training loses least in each framework."""
    loops = by_framework(rows_of_kind(runs, TrainRow), _is_good)
    if not loops:
        return Claims()
    told = []
    for framework, rows in loops.items():
        row = min(whole(rows), key=_overhead)
        told.append(Told(f"{row.method} {interval_in_words(row.every)}", framework, _added(row)))
    return Claims(
        training=[
            f"with all that also slows the steps, it costs training least with {by_method(told)}"
        ]
    )


def _name(naming: Naming, row: TrainRow) -> str:
    """Return the method with its interval, because a table may have several."""
    return naming.full_name(row, f" {interval_in_words(row.every)}")


def _is_good(row: TrainRow) -> bool:
    return row.is_clean and row.verified and row.overhead_s is not None


def _overhead(row: TrainRow) -> float:
    return row.overhead_s.value if row.overhead_s else _LONGEST


def _overhead_until_flushed(row: TrainRow) -> float:
    if row.overhead_s is None:
        return _LONGEST
    unflushed_s = row.unflushed_s.value if row.unflushed_s else 0.0
    return row.overhead_s.value + unflushed_s


def _waits(row: TrainRow) -> bool:
    """Return whether the loop waits for a save by more than a tenth of a step."""
    if row.back_pressure_s is None or row.step_s is None:
        return False
    return row.back_pressure_s.is_above(_MATTERS_ABOVE * row.step_s.value)


def _added(row: TrainRow) -> str:
    if row.overhead_share is None:
        return spread_duration(row.overhead_s)
    return f"{spread_duration(row.overhead_s)}, {100 * row.overhead_share.value:+.1f} % of training"
