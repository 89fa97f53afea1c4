"""Experiment `parity` in words: which frameworks hold the same state."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.claims import Claims, Runs, certain_rows
from harness.analysis.row import Naming
from harness.analysis.text import listed
from harness.experiments.parity.rows import ParityRow


def meaning(rows: Sequence[ParityRow], naming: Naming) -> str:
    """Return which frameworks hold the same state, and which do not."""
    same = [row.framework for row in rows if row.verified]
    other = [row.framework for row in rows if row.status == "failed"]
    said = []
    if same:
        said.append(f"{listed(same)} hold the same state and train it alike.")
    if other:
        verb = "does" if len(other) == 1 else "do"
        said.append(f"{listed(other)} {verb} not: see the reasons below.")
    return " ".join(said)


def claims(runs: Runs) -> Claims:
    """Return how many states are the same as the other frameworks'."""
    rows = certain_rows(runs, ParityRow)
    verdicts = [row.verified for row in rows if row.status in ("ok", "failed")]
    if not verdicts:
        return Claims()
    same = f"{sum(verdicts)} of {len(verdicts)}"
    return Claims(trust=[f"{same} states built by a framework are the same as the others'"])
