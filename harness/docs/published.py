"""The costs that are compatible with the published shares of large systems, as a table."""

from __future__ import annotations

from harness.docs.markdown import table
from harness.intervals import consistency
from harness.intervals.consistency import Setting, System


def compatible() -> str:
    """Return which intervals of every system are compatible, for each restart and cost."""
    costs = [f"δ = {cost_s:g} s" for cost_s in consistency.COSTS_S]
    headings = ["system", "published", "R", *costs]
    lines = []
    for system in consistency.SYSTEMS:
        found = consistency.settings(system)
        for restart_s in consistency.RESTARTS_S:
            cells = [_intervals(each) for each in found if each.restart_s == restart_s]
            lines.append([system.name, _share(system), f"{restart_s / 60:g} min", *cells])
    sources = "\n".join(f"- {system.name}: {system.source}" for system in consistency.SYSTEMS)
    return f"{table(headings, lines)}\n\n{sources}."


def _intervals(setting: Setting) -> str:
    """Return the compatible intervals, or the share of the best one, which is too low."""
    if not setting.intervals_s:
        return f"at most {setting.best_share:.1%}"
    ranges = [f"{_time(low_s)} to {_time(high_s)}" for low_s, high_s in setting.intervals_s]
    return " or ".join(ranges)


def _time(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 60 else f"{seconds / 60:.3g} min"


def _share(system: System) -> str:
    if system.high == 1.0:
        return f"over {system.low:.0%}"
    return f"{system.low:.1%} to {system.high:.1%}"
