"""Errors that a user reads: one sentence on what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED_AT_MOST = 30  # names


class UsageError(ValueError):
    """One clear sentence about wrong usage or bad input. The command line prints it and exits.

    It is a ValueError, so that a validator of a declaration may raise it and pydantic adds the key.
    """

    exit_status = 2


class IncomparableError(UsageError):
    """Two sides that are right and cannot be compared. The command line exits with 3."""

    exit_status = 3


def nearest(kind: str, given: str, valid: Iterable[str], where: str = "") -> UsageError:
    """Return the error for a name that is not in `valid`, with the nearest valid name.

    `where` says where the name was looked for. The comparison ignores case, because a similarity
    ratio rates a wrong capital in a short name as worse than any other typo.
    """
    names = sorted(valid)
    parts = given.split(",")
    if len(parts) > 1 and set(parts) <= set(names):
        return UsageError(f"{given!r} is no {kind}; give the option once for each of them")
    by_lower_case = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), by_lower_case, n=1)
    hint = f"; did you mean {by_lower_case[close[0]]!r}?" if close else ""
    # Names of runs begin with their dates, so the last names are those of the newest runs.
    listed = names[-_LISTED_AT_MOST:]
    known = ", ".join(listed) or "none"
    if len(names) > len(listed):
        known += f" and {len(names) - len(listed)} more"
    place = f" {where}" if where else ""
    return UsageError(f"unknown {kind} {given!r}{place}{hint} (known: {known})")
