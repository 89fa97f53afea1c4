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
    whole = [row for row in methods if row.covers == "full"]
    # Where training itself differs from run to run, that is not the method's doing.
    differing = [row for row in whole if not row.bitwise and not row.differed_before]
    before = [row for row in whole if row.differed_before]
    if same:
        said.append(f"Bit by bit as if nothing had happened: {listed(same)}.")
    if differing:
        names = listed([naming.full_name(row) for row in differing])
        said.append(f"Not bit by bit, although they cover the whole state: {names}.")
    if before:
        names = listed([naming.full_name(row) for row in before])
        said.append(f"Training differed already before the save, so nothing is known of {names}.")
    return " ".join(said)


def claims(runs: Runs) -> Claims:
    """Return how many killed runs went on bit by bit from a checkpoint of their whole state.

    A method that failed counts too, because it did not go on.
    """
    rows = certain_rows(runs, ResumeRow)
    resumed = [row for row in rows if row.method and not row.ablated and row.covers == "full"]
    known = [row for row in resumed if not row.differed_before]
    tried = [row for row in known if row.bitwise is not None or row.status == "failed"]
    if not tried:
        return Claims()
    same = f"{sum(bool(row.bitwise) for row in tried)} of {len(tried)}"
    return Claims(
        trust=[f"{same} killed runs went on bit by bit from a checkpoint of their whole state"]
    )


def _trains_again(row: ResumeRow) -> str:
    bits = "the same bits" if row.bitwise else "other bits"
    strategy = f" with {row.strategy}" if row.strategy else ""
    return f"{row.framework} trains {bits} when it trains again{strategy}."
