"""The things that a failed save leaves behind: files beside the checkpoints, and processes.

They are looked for when the method has saved once more and is closed, because it may clean up then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

from harness.durability.trees import Tree
from harness.worker import usage

# Steps, and hashes or random names, differ from save to save.
_CHANGING = re.compile(r"[0-9a-f]{8,}|\d+")
_END_WITHIN_S = 1.0
_LOOK_S = 0.02


def patterns(tree: Tree) -> set[str]:
    """Return the names in a directory without what differs from save to save."""
    return {_pattern(name) for name in tree}


def stray_files(tree: Tree, usual: AbstractSet[str]) -> tuple[str, ...]:
    """Return the names that saves do not leave when nothing fails. `usual` are their patterns."""
    return tuple(name for name in sorted(tree) if _pattern(name) not in usual)


def left_processes(before: Iterable[int]) -> tuple[str, ...]:
    """Return the commands of processes below this one that are new and do not end by themselves."""
    deadline_s = time.monotonic() + _END_WITHIN_S
    while True:
        commands = [_command(process) for process in set(usage.descendants()) - set(before)]
        living = tuple(sorted(command for command in commands if command))
        if not living or time.monotonic() > deadline_s:
            return living
        time.sleep(_LOOK_S)


def _pattern(name: str) -> str:
    return _CHANGING.sub("#", name)


def _command(process: int) -> str:
    """Return the command of a process; empty where it has ended."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()[:100]
