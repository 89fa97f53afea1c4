"""The costs that are compatible with the published shares of large systems, as a table."""

from __future__ import annotations

from harness.docs.markdown import table
from harness.intervals import consistency
from harness.intervals.consistency import Setting, System


def compatible() -> str:
    """Return the compatible intervals of every system, for each restart and cost."""
    headings = ["system", "published", "restart", *(f"δ = {s:g} s" for s in consistency.COSTS_S)]
    lines = []
    for system in consistency.SYSTEMS:
        found = consistency.compatible(system)
        for restart_s in consistency.RESTARTS_S:
            cells = [_intervals(found, cost_s, restart_s) for cost_s in consistency.COSTS_S]
            lines.append([system.name, _share(system), f"{restart_s / 60:g} min", *cells])
    sources = "\n".join(f"- {system.name}: {system.source}" for system in consistency.SYSTEMS)
    return f"{table(headings, lines)}\n\n{sources}."


def _intervals(found: list[Setting], cost_s: float, restart_s: float) -> str:
    """Return the compatible intervals of one cost and restart in minutes."""
    minutes = sorted(
        each.interval_s / 60
        for each in found
        if (each.cost_s, each.restart_s) == (cost_s, restart_s)
    )
    return ", ".join(f"{each:.3g}" for each in minutes) + " min" if minutes else "none"


def _share(system: System) -> str:
    if system.high == 1.0:
        return f"over {system.low:.0%}"
    return f"{system.low:.1%} to {system.high:.1%}"
