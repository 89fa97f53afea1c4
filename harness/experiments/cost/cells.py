"""The texts of a cost row's cells, and the rows for which a table has a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.analysis import text

_WORTH_A_COLUMN = 0.1  # of the load
# The words of a cell for a load that is not cold, where they are not the word of the record.
_LOADED_FROM = {
    "uncounted": "not cached, reads not counted",
    "unknown": "cache unknown",
}


def share_text(row: Any) -> str:
    """Return the share of the ceiling, with a mark where the ceiling is in doubt."""
    mark = "*" if row.above_ceiling else ""
    return f"{text.share(row.write_efficiency)}{mark}"


def load_text(row: Any) -> str:
    """Return the time of a load, and where it read from if that was not the device.

    A mark stands behind a median of loads that were partly disturbed.
    """
    seconds = text.duration(row.load_s)
    if row.load_used_disturbed:
        seconds += text.DISTURBED
    if row.load_s is None or row.load_cache == "cold":
        return seconds
    where = _LOADED_FROM.get(row.load_cache, row.load_cache)
    return f"{seconds} ({where})"


def power_safe_text(row: Any) -> str:
    """Return the instant after which the checkpoint is safe, and whether its data is."""
    if row.durability == "none":
        return text.NOTHING
    data_is_safe = row.data_durability in ("at return", "at finished")
    if row.durability == "never" and data_is_safe:
        return f"never (data {row.data_durability})"
    return str(row.durability)


def ranks_text(row: Any) -> str:
    """Return how many ranks saved, with a mark where processors were fewer."""
    mark = text.OVERSUBSCRIBED if row.oversubscribed else ""
    return f"{row.world}{mark}"


def straggler_text(row: Any) -> str:
    """Return the ratio; the last rank says something only where all have the same to do."""
    alike = row.writers is None or row.writers == row.world
    return text.NOTHING if row.straggler is None or not alike else f"{row.straggler:.2f}"


def writers_text(row: Any) -> str:
    """Return how many of the ranks wrote."""
    return text.NOTHING if row.writers is None else f"{row.writers} of {row.world}"


def memory_text(row: Any) -> str:
    """Return the peak memory of a save."""
    return states(row.peak_memory_bytes, row)


def device_memory_text(row: Any) -> str:
    """Return the peak of the GPU's memory that a save takes."""
    return states(row.device_extra_bytes, row)


def has_device_memory(rows: Sequence[Any]) -> bool:
    """Return whether any row knows it. No row of a CPU does."""
    return any(row.device_extra_bytes is not None for row in rows)


def load_memory_text(row: Any) -> str:
    """Return the peak memory of a load."""
    return states(row.load_peak_memory_bytes, row)


def growth_text(row: Any) -> str:
    """Return the growth of memory over saves."""
    return states(row.memory_growth_bytes, row)


def states(count: int | None, row: Any) -> str:
    """Return bytes as a multiple of the state."""
    if count is None or not row.state_bytes:
        return text.NOTHING
    return f"{count / row.state_bytes:.2f}"


def has_several_worlds(rows: Sequence[Any]) -> bool:
    """Return whether rows differ in their number of ranks."""
    return len({row.world for row in rows}) > 1


def has_several_ranks(rows: Sequence[Any]) -> bool:
    """Return whether any row has several ranks."""
    return any(row.world > 1 for row in rows)


def has_open(rows: Sequence[Any]) -> bool:
    """Return whether any run says it: those before schema 7 do not."""
    return any(row.open_s is not None for row in rows)


def has_load_open(rows: Sequence[Any]) -> bool:
    """Return whether opening to load takes time that is worth a column beside any load."""
    return any(_opens_long(row) for row in rows)


def _opens_long(row: Any) -> bool:
    if row.load_open_s is None or row.load_s is None:
        return False
    return bool(row.load_open_s.value > _WORTH_A_COLUMN * row.load_s.value)


def has_waits_in_step(rows: Sequence[Any]) -> bool:
    """Return whether any method makes an update of the optimizer wait."""
    return any(row.waits_in_step_s is not None for row in rows)
