"""Experiment `resume` in words: which methods go on bit by bit, and which do not."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.claims import Claims, Runs, certain_rows
from harness.analysis.row import Naming
from harness.analysis.text import listed
from harness.experiments.resume.rows import ResumeRow


def meaning(rows: Sequence[ResumeRow], naming: Naming) -> str:
    """Return which methods resume bit by bit, and which do not although they cover everything."""
    known = [row for row in rows if row.bitwise is not None and not row.ablated]
    said = [_trains_again(row) for row in known if not row.method]
    methods = [row for row in known if row.method]
    same = [naming.full_name(row) for row in methods if row.bitwise]
    differing = [row for row in methods if not row.bitwise and row.covers == "full"]
    if same:
        said.append(f"Bit by bit as if nothing had happened: {listed(same)}.")
    if differing:
        names = listed([naming.full_name(row) for row in differing])
        said.append(f"Not bit by bit, although they cover the whole state: {names}.")
    return " ".join(said)


def claims(runs: Runs) -> Claims:
    """Return how many killed runs went on bit by bit from a checkpoint of their whole state."""
    rows = certain_rows(runs, ResumeRow)
    resumed = [row for row in rows if row.method and not row.ablated and row.covers == "full"]
    verdicts = [row.bitwise for row in resumed if row.bitwise is not None]
    if not verdicts:
        return Claims()
    same = f"{sum(verdicts)} of {len(verdicts)}"
    return Claims(
        trust=[f"{same} killed runs went on bit by bit from a checkpoint of their whole state"]
    )


def _trains_again(row: ResumeRow) -> str:
    bits = "the same bits" if row.bitwise else "other bits"
    strategy = f" with {row.strategy}" if row.strategy else ""
    return f"{row.framework} trains {bits} when it trains again{strategy}."
