"""An end of this process at a moment that nothing in it can delay."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SHORTEST_S = 1e-6


@contextmanager
def killed_after(seconds: float) -> Iterator[None]:
    """Have the kernel end this process after some time, unless the block ends before."""
    # Python's own handler would wait until the interpreter is free, and a store may take longer.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    limit_s, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, _SHORTEST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, limit_s)


def has_killed(ending: str) -> bool:
    """Return whether a job's ending says that `killed_after` has ended its process."""
    return signal.SIGALRM.name in ending
