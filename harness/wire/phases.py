"""The position of a rank, as a few bytes in a file that worker and driver share.

It is what remains when the worker is killed. Standard library only.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

# The numbers of changes and of changes shown to all nodes, the task and the phase. The worker of an
# old checkout writes one number of eight bytes for the first two. Its upper half is 0, so it reads
# as no changes shown. An old driver reads the two as one number, which grows as they do.
POSITION = struct.Struct("<IIi20s")
DONE = "done"


class Position(NamedTuple):
    """The position of a rank.

    A rank whose position does not change hangs. The other ranks wait for the one that reached
    least.

    `changes` counts phases. `reached` is the same number on one machine. Where ranks are on several
    nodes, it is the number when the position was last shown to all nodes, because the driver sees
    every phase of the ranks on its own node, and these would always seem to be ahead of the others.
    """

    changes: int = 0
    task: int = -1  # its index in the job; -1 for none
    phase: str = "launch"
    reached: int = 0


def records_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's records."""
    return folder / f"rank-{rank:05d}.jsonl"


def position_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's position."""
    return folder / f"rank-{rank:05d}.mark"


def read_position(folder: Path, rank: int) -> Position:
    """Return where a rank stands. One that has not begun to write stands at its launch."""
    try:
        changes, shown, task, phase_bytes = POSITION.unpack(
            position_path(folder, rank).read_bytes()
        )
    except (FileNotFoundError, struct.error):
        return Position()
    phase = phase_bytes.rstrip(b"\0").decode(errors="replace")
    return Position(changes, task, phase or Position().phase, shown or changes)
