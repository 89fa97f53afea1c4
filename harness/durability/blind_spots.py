"""Finds the parts of a save that its log does not show."""

from __future__ import annotations

from collections.abc import Iterable

from harness.durability.calls import Call
from harness.durability.window import Window

# Calls that pass reads and writes to the kernel through memory, where strace cannot see them.
RING_CALLS = ("io_uring_setup", "io_uring_enter", "io_submit")

# A thread of the kernel serves such a ring without any further call. Other rings need
# io_uring_enter for every batch.
_POLLED_RING = "IORING_SETUP_SQPOLL"


def blind_spot(calls: Iterable[Call], window: Window) -> str | None:
    """Return the reason why the log does not show every write of the save, or None if it does."""
    for call in calls:
        is_inside = window.begin < call.start < window.finished
        if is_inside and not call.is_readable:
            return f"line {call.start + 1} of the log cannot be read"
        if call.name not in RING_CALLS or call.has_failed:
            continue
        is_polled = call.start < window.finished and _POLLED_RING in " ".join(call.arguments)
        if is_inside or is_polled:
            return f"a process called {call.name}, and writes through it do not show in the log"
    return None
