"""Experiment `reshard` in words: whose checkpoints another number of ranks can load."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.claims import Claims, Runs, certain_rows
from harness.analysis.row import Naming
from harness.analysis.text import listed
from harness.experiments.reshard.rows import ReshardRow


def meaning(rows: Sequence[ReshardRow], naming: Naming) -> str:
    """Return whose checkpoints are whole for another number of ranks."""
    good = [naming.full_name(row) for row in rows if row.verified]
    if not good:
        return "No checkpoint is whole for another number of ranks."
    return f"Whole for another number of ranks: {listed(good)}."


def claims(runs: Runs) -> Claims:
    """Return how many checkpoints are whole for another number of ranks."""
    rows = certain_rows(runs, ReshardRow)
    verdicts = [row.verified for row in rows if row.status in ("ok", "failed")]
    if not verdicts:
        return Claims()
    whole = f"{sum(verdicts)} of {len(verdicts)}"
    return Claims(trust=[f"{whole} checkpoints are whole for another number of ranks"])
