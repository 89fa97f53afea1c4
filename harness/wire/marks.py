"""Marks the instants of a traced save by a harmless system call, so that a trace shows them between the calls they separate.

The worker marks and the driver reads: both sides of the process border import this, so it is
standard library only.
"""

from __future__ import annotations

import os
from typing import Literal, cast, get_args

# watched: no late work is looked for any more
Instant = Literal["begin", "returned", "staged", "finished", "watched"]

_PREFIX = "/ckptbench/mark/"


def mark(case_id: str, instant: Instant) -> None:
    """Ask whether a path exists that names the case and the instant.

    It never does; asking is visible in a trace.
    """
    os.access(f"{_PREFIX}{case_id}/{instant}", os.F_OK)


def parse(path: str) -> tuple[str, Instant] | None:
    """The case id and the instant that `path` marks; None for every other path."""
    case_id, slash, instant = path.removeprefix(_PREFIX).rpartition("/")
    if not path.startswith(_PREFIX) or not slash or instant not in get_args(Instant):
        return None
    return case_id, cast(Instant, instant)
