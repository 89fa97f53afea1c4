"""Experiment `drill` in words: how many failures were survived, and which were not."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.claims import Claims, Runs, certain_rows
from harness.analysis.row import Naming
from harness.experiments.drill import DRILLS
from harness.experiments.drill.rows import DrillRow
from harness.experiments.recovery import WAYS


def meaning(rows: Sequence[DrillRow], naming: Naming) -> str:
    """Return how many failures were survived, and a sentence for each that was not."""
    tried = _tried(rows)
    if not tried:
        return "No failure was tried."
    passed = sum(bool(row.passed) for row in tried)
    said = [f"Training survived {passed} of {len(tried)} failures."]
    for row in tried:
        if not row.passed:
            way = WAYS[row.way].in_words
            said.append(f"'{way}' failed where {DRILLS[row.failure]}: {_why(row)}.")
    return " ".join(said)


def claims(runs: Runs) -> Claims:
    """Return how many failures were survived."""
    rows = certain_rows(runs, DrillRow)
    tried = _tried(rows)
    if not tried:
        return Claims()
    passed = sum(bool(row.passed) for row in tried)
    return Claims(trust=[f"training survived {passed} of {len(tried)} harder failures"])


def _tried(rows: Sequence[DrillRow]) -> list[DrillRow]:
    """Return the rows that say whether a failure was survived. A rank that raised says it too."""
    return [row for row in rows if row.passed is not None or row.status == "failed"]


def _why(row: DrillRow) -> str:
    if row.reason:
        return row.reason
    return f"it has the bits of '{row.same_as}', and must have those of '{row.expected}'"
