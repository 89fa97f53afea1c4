"""The processes of the ranks, so that one can be missed that ended before it came to a save."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ENDED = ("Z", "X")


class Process(NamedTuple):
    """A process, told from all others: those of other hosts, and those that get its number later.

    `start_ticks` is when it started, in clock ticks since its host did.
    """

    boot: str
    namespace: str
    pid: int
    start_ticks: int

    @classmethod
    def this(cls) -> Process | None:
        """Return the present process, or None where the system does not tell."""
        try:
            boot = _BOOT.read_text().strip()
            _, start_ticks = _state_and_start("self")
            return cls(boot, _namespace(), os.getpid(), start_ticks)
        except OSError:
            return None

    def has_ended(self) -> bool:
        """Return whether the process has ended. One that cannot be seen from here has not."""
        try:
            if (_BOOT.read_text().strip(), _namespace()) != (self.boot, self.namespace):
                return False
            state, start_ticks = _state_and_start(str(self.pid))
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:
            return False
        return state in _ENDED or start_ticks != self.start_ticks


def _namespace() -> str:
    """Return the namespace of process numbers, because containers count their own."""
    return os.readlink("/proc/self/ns/pid")


def _state_and_start(pid: str) -> tuple[str, int]:
    """Return a process's state and the clock tick of its start, as in proc_pid_stat(5).

    Raise OSError where there is no such process.
    """
    line = Path("/proc", pid, "stat").read_text()
    # The name before this parenthesis may contain anything.
    fields = line.rpartition(")")[2].split()
    return fields[0], int(fields[19])
