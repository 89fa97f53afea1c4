"""The texts of a recovery row's cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.analysis import text


def two_digits(ratio: float) -> str:
    """Return a ratio of medians, whose kills differ too much for more than two digits."""
    # From here on, one digit behind the point would be a third digit.
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def came_back_text(row: Any) -> str:
    """Return after how many of its kills training came back."""
    return f"{row.came_back} of {row.kills}" if row.kills else text.NOTHING


def back_text(row: Any) -> str:
    """Return the whole way back, with the full range of the kills."""
    return text.duration_with_interval(row.back)


def ratio_text(row: Any) -> str:
    """Return how many times sooner the row is back than a restart."""
    return text.NOTHING if row.times_faster is None else _times_sooner(row.times_faster)


def restore_text(row: Any) -> str:
    """Return the time of the restore, and how many times sooner it is than in a restart."""
    seconds = text.duration(row.restore)
    ratio = (row.part_ratios or {}).get("restore")
    return seconds if ratio is None else f"{seconds} ({_times_sooner(ratio)})"


def ranks_after_text(row: Any) -> str:
    """Return how many ranks train after the first kill, and after the last."""
    if not row.ranks_after:
        return text.NOTHING
    least, most = min(row.ranks_after), max(row.ranks_after)
    return str(most) if least == most else f"{most} to {least}"


def own_state_text(row: Any) -> str:
    """Return what became of the state that the dead rank alone had."""
    if row.own_state_lost is None:
        return text.NOTHING
    return "lost" if row.own_state_lost else "kept"


def percent_text(row: Any) -> str:
    """Return the part of a processor that a waiting spare takes."""
    return text.NOTHING if row.spare_share is None else f"{row.spare_share:.1%}"


def milliseconds(name: str) -> Callable[[Any], str]:
    """Return how a table shows seconds that are mostly far below a thousandth."""

    def shown(row: Any) -> str:
        seconds = getattr(row, name)
        return text.NOTHING if seconds is None else f"{seconds * 1e3:.2f} ms"

    return shown


def _times_sooner(ratio: float) -> str:
    return f"{two_digits(ratio)} x"
