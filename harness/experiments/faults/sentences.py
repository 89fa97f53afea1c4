"""Experiment `faults` in words: which methods leave a usable checkpoint whatever strikes a save."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.claims import Claims, Runs, rows_of_kind
from harness.analysis.row import Naming
from harness.analysis.text import listed
from harness.experiments.faults.rows import FaultsRow


def meaning(rows: Sequence[FaultsRow], naming: Naming) -> str:
    """Return which methods survive every crash, and which load damaged bytes without an error."""
    tried = [row for row in rows if row.status == "ok"]
    if not tried:
        return "No save could be struck."
    crashed = [row for row in tried if row.kill]
    safe = [naming.full_name(row) for row in crashed if _is_safe(row)]
    # A loss is worse, but it does not hide that other damages were silent.
    silent = [naming.full_name(row) for row in tried if (row.damage_verdicts or {}).get("silent")]
    said = []
    if safe:
        said.append(f"A resumed run is safe after every kill and power loss with {listed(safe)}.")
    elif crashed:
        said.append("With no method is a resumed run safe after every kill and power loss.")
    if silent:
        said.append(f"Damaged files load without an error with {listed(silent)}.")
    else:
        said.append("Every loader notices every damage.")
    return " ".join(said)


def claims(runs: Runs) -> Claims:
    """Return how many methods are safe after every crash."""
    rows = [row for members in rows_of_kind(runs, FaultsRow) for row in members]
    crashed = [row for row in rows if row.status == "ok" and row.kill]
    if not crashed:
        return Claims()
    safe = sum(map(_is_safe, crashed))
    return Claims(
        trust=[f"{safe} of {len(crashed)} methods are safe after every kill and power loss"]
    )


def _is_safe(row: FaultsRow) -> bool:
    return row.kill == "safe" and row.power_loss in ("", "safe")
