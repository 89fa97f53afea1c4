"""The exit codes of a job's forked processes, which the worker writes and the driver reads."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence

from harness.wire.folders import Folders

AT_MOST_S = 60  # of one task
OVERDUE = signal.SIGVTALRM
"""Ends a process after that time. It is no signal by which a save is killed."""


def write(folders: Folders, codes: Sequence[int]) -> None:
    """Store the exit code of each task's process so far; minus its number for a signal.

    Raises OSError where the file cannot be written.
    """
    unfinished = folders.endings.with_suffix(".new")
    unfinished.write_text(json.dumps(list(codes)))
    unfinished.replace(folders.endings)


def read(folders: Folders) -> list[int]:
    """Return the codes in the order of the tasks. A job that broke has fewer than tasks."""
    if not folders.endings.exists():
        return []
    codes: list[int] = json.loads(folders.endings.read_text())
    return codes


def forget(folders: Folders) -> None:
    """Take away what an earlier job has left."""
    folders.endings.unlink(missing_ok=True)


def in_words(code: int) -> str:
    """Return an ending that nobody had ordered, such as "ended by itself with SIGSEGV"."""
    if code == -OVERDUE:
        return f"did not end within {AT_MOST_S} s"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    return f"ended by itself with {name}"
