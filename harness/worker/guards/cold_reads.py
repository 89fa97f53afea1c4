"""Guard `cold-reads`: the values of a load come out of its files, and while the clock runs.

The files have left the page cache before a load, and no mapping of them may remain after it. Where
the kernel accounts reads, it must have read them from the device.
"""

from __future__ import annotations

from pathlib import Path

from harness.wire.records import CacheState
from harness.worker import storage

NAME = "cold-reads"
_RESIDENT_AT_MOST = 0.001
_READ_AT_LEAST = 0.99


class NotRead(Exception):
    """A load gave the right values without reading its files."""


def check_nothing_mapped(path: Path) -> None:
    """Raise NotRead if a load left a mapping of a file, because its values are still to be read."""
    mapped = storage.mapped_files(path)
    if mapped:
        raise NotRead(
            f"{Path(mapped[0]).name} is still mapped after the load, so its values are read later, "
            "outside the clock; load() must copy them into the state"
        )


def cache_state(resident: float, read_bytes: int, file_bytes: int, counted: bool) -> CacheState:
    """Return whether a load was cold.

    A cold load had no page in memory before it, and each byte came through the device. `resident`
    is the share of the checkpoint's pages that were in memory, or -1 where the kernel does not say.
    `read_bytes` came from the device, over all ranks. `counted` is false where reads from this
    directory are not accounted to the process. Then an "uncounted" load only had no page in memory.
    Raise NotRead where the values cannot have come from the files.
    """
    if resident < 0:
        return "unknown"
    if resident > _RESIDENT_AT_MOST:
        return "warm"
    if not counted:
        return "uncounted"
    if read_bytes < file_bytes // 2:
        raise NotRead(
            f"the load read {read_bytes} of the checkpoint's {file_bytes} bytes from the device, "
            "and none were cached, so its values came from somewhere else; "
            "load() must read them from the files"
        )
    return "cold" if read_bytes >= _READ_AT_LEAST * file_bytes else "warm"
