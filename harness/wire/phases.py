"""Where a rank stands, as a few bytes in a file that worker and driver share. Standard library only.

The mark is what remains when the worker is killed.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

# Changes, what of them was told, task and phase. The worker of another checkout may have one number
# of eight bytes at the front, which reads as nothing told, and reads these two as one that grows as
# they do.
MARK = struct.Struct("<IIi20s")
DONE = "done"


class Mark(NamedTuple):
    """Where a rank stands.

    What does not change hangs; the rank that has reached least is the one that others wait for.

    `changes` counts phases. `reached` is as many, or, where ranks are on several nodes, as many as
    all nodes have been told of: else the ranks whose every phase the driver sees would always seem
    to be ahead of the others.
    """

    changes: int = 0
    task: int = -1  # its index in the job; -1 for none
    phase: str = "launch"
    reached: int = 0


def records_path(folder: Path, rank: int) -> Path:
    """Where a rank writes its records."""
    return folder / f"rank-{rank:05d}.jsonl"


def mark_path(folder: Path, rank: int) -> Path:
    """Where a rank marks its phase."""
    return folder / f"rank-{rank:05d}.mark"


def read_mark(folder: Path, rank: int) -> Mark:
    """Return the mark of a rank, also of one that is gone, or is still to come."""
    try:
        changes, told, task, phase = MARK.unpack(mark_path(folder, rank).read_bytes())
    except (FileNotFoundError, struct.error):
        return Mark()
    return Mark(
        changes, task, phase.rstrip(b"\0").decode(errors="replace") or Mark().phase, told or changes
    )
