"""Experiment `killed_rank` in words: what killed ranks leave, and whether the others hang."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from harness.analysis.claims import Claims, Runs, certain_rows
from harness.analysis.row import Naming
from harness.analysis.text import listed
from harness.experiments.killed_rank.rows import KilledRankRow

_LINE_CHARACTERS = 200


def meaning(rows: Sequence[KilledRankRow], naming: Naming) -> str:
    """Return which methods leave a usable checkpoint, and whose ranks hang."""
    tried = [row for row in rows if row.killed_rank]
    if not tried:
        return "No rank could be killed."
    safe = [naming.full_name(row) for row in tried if _is_safe(row)]
    so_far = [row for row in tried if row.killed_rank == "safe" and row.not_reached]
    hanging = [naming.full_name(row) for row in tried if (row.fates or {}).get("hung")]
    if safe:
        said = [f"A resumed run is safe wherever one rank is killed with {listed(safe)}."]
    else:
        said = ["With no method is a resumed run safe wherever one rank is killed."]
    for row in so_far:
        said.append(
            f"{naming.full_name(row)} was safe in {row.kills} kills, and {row.not_reached} came "
            "too late."
        )
    if hanging:
        said.append(f"The other rank may hang with {listed(hanging)}.")
    return " ".join(said)


def _is_safe(row: KilledRankRow) -> bool:
    """Return whether every kill that was ordered struck, and left a usable checkpoint."""
    return row.killed_rank == "safe" and not row.not_reached


def details(rows: Sequence[KilledRankRow], naming: Naming, *, is_short: bool) -> list[str]:
    """Return the worst kill of each method, and the first one after which the other rank hung."""
    names_of: dict[str, list[str]] = {}
    for row in rows:
        for line in filter(None, (row.worst, row.first_hang)):
            shown = line
            if is_short:
                first_line = line.partition("\n")[0]
                shown = textwrap.shorten(first_line, _LINE_CHARACTERS, placeholder=" …")
            names_of.setdefault(shown, []).append(naming.full_name(row))
    return [f"{listed(names)}: {line}" for line, names in names_of.items()]


def claims(runs: Runs) -> Claims:
    """Return how many methods are safe wherever a rank is killed."""
    rows = certain_rows(runs, KilledRankRow)
    tried = [row for row in rows if row.killed_rank]
    if not tried:
        return Claims()
    safe = sum(_is_safe(row) for row in tried)
    return Claims(trust=[f"{safe} of {len(tried)} methods are safe wherever one rank is killed"])
