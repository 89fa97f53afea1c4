"""Marks of a traced save's instants, by a harmless system call.

A trace shows them between the calls that they separate. The worker marks and the driver reads. Both
sides of the process border import this module, so it needs the standard library only.
"""

from __future__ import annotations

import os
from typing import Literal, cast, get_args

# "opened" comes before the method is opened. After "watched", nobody looks for late work any more.
Instant = Literal["opened", "begin", "returned", "staged", "finished", "watched"]

_PREFIX = "/ckptbench/mark/"


def mark(case_id: str, instant: Instant) -> None:
    """Mark an instant of a case: ask whether a path exists that names both.

    It never exists, but a trace shows the call.
    """
    os.access(path(case_id, instant), os.F_OK)


def path(case_id: str, instant: Instant) -> str:
    """Return the path by which an instant of a case shows in a log."""
    return f"{_PREFIX}{case_id}/{instant}"


def parse(path: str) -> tuple[str, Instant] | None:
    """Return the case's id and the instant that `path` marks, or None for every other path."""
    case_id, slash, instant = path.removeprefix(_PREFIX).rpartition("/")
    if not path.startswith(_PREFIX) or not slash or instant not in get_args(Instant):
        return None
    return case_id, cast(Instant, instant)
