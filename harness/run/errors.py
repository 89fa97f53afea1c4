"""What a user did wrong, in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED_AT_MOST = 30  # names


class UsageError(ValueError):
    """One clear sentence about wrong usage or bad input; the command line prints it and exits.

    A ValueError, so that a validator of a declaration may raise it and pydantic adds the key.
    """

    exit_status = 2


class IncomparableError(UsageError):
    """Nothing is wrong but that two sides cannot be held against each other; the command line exits with 3."""

    exit_status = 3


def nearest(kind: str, given: str, valid: Iterable[str], where: str = "") -> UsageError:
    """Return the error for a name that is not among `valid`, with the nearest valid one; `where` says where it was looked for.

    The comparison ignores case, because a wrong capital is the typo that a similarity ratio rates
    worst in short names.
    """
    names = sorted(valid)
    by_lower_case = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), by_lower_case, n=1)
    place = f" {where}" if where else ""
    hint = f"; did you mean {by_lower_case[close[0]]!r}?" if close else ""
    listed = names[-_LISTED_AT_MOST:]  # of runs, whose names begin with their dates, the newest
    more = f" and {len(names) - len(listed)} more" if len(names) > len(listed) else ""
    return UsageError(
        f"unknown {kind} {given!r}{place}{hint} (known: {', '.join(listed) or 'none'}{more})"
    )
