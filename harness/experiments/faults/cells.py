"""The texts of the cells of a row of struck saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.analysis import text
from harness.analysis.statistics import Estimate
from harness.experiments.faults import verdicts
from harness.experiments.faults.records import ON_DISK

_NOT_DONE = "not done"


def counted(name: str) -> Callable[[Any], str]:
    """Return how a table shows the verdicts of one kind of strike, those that are not safe."""

    def shown(row: Any) -> str:
        counts: dict[str, int] | None = getattr(row, f"{name}_verdicts")
        return verdicts.in_words(counts) if counts else text.NOTHING

    return shown


def on_disk(file_system: str) -> Callable[[Any], str]:
    """Return how a table shows the verdicts on one file system, or that there are none."""
    of_disk = counted(field(ON_DISK[file_system]))

    def shown(row: Any) -> str:
        return _NOT_DONE if file_system in (row.not_on_disks or {}) else of_disk(row)

    return shown


def field(strike: str) -> str:
    """Return the name of a strike's column."""
    return strike.replace(" ", "_")


def of_errors(row: Any) -> str:
    """Return how a table shows the verdicts on errors, or that none was tried."""
    is_done = row.error_verdicts or not row.not_struck
    return counted("error")(row) if is_done else _NOT_DONE


def of_real_kills(row: Any) -> str:
    """Return how a table shows how many real kills were as predicted, or that there was none."""
    if not row.real_kills:
        return _NOT_DONE if row.not_struck else text.NOTHING
    if row.as_predicted is None:
        return text.NOTHING
    of_ordered = f" of {row.real_kills + row.not_reached}" if row.not_reached else ""
    return f"{row.as_predicted}/{row.real_kills}{of_ordered}"


def within_grace(name: str) -> Callable[[Any], str]:
    """Return how a table shows the time from a SIGTERM on, or that the grace was over before."""

    def shown(row: Any) -> str:
        took: Estimate | None = getattr(row, name)
        is_late = took is None and row.grace_s is not None
        return f"not within {row.grace_s} s" if is_late else text.duration(took)

    return shown


def of_next_saves(row: Any) -> str:
    """Return how many next saves failed, and how many of these reported success."""
    if not row.next_saves:
        return text.NOTHING
    if not row.next_broken:
        return str(row.next_fails)
    return f"{row.next_fails}, {row.next_broken} not noticed"


def of_left_behind(row: Any) -> str:
    """Return after how many failed saves files and processes are left, and how much memory."""
    counts = [("files", row.left_files), ("processes", row.left_processes)]
    words = [f"{name} {count}/{row.next_saves}" for name, count in counts if count]
    if row.left_memory_bytes:
        words.append(f"{text.size(row.left_memory_bytes)} of memory")
    if row.next_saves and not words:
        return "nothing"
    return ", ".join(words) or text.NOTHING
