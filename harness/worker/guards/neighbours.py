"""Guard `neighbours`: a method does not change the process that it shares with other methods.

Busy threads, another affinity, a patched `os.fsync`, lower limits or another working directory make
the samples of other methods slower or wrong. The method that did it goes on alone in a process, and
the others go on in a new one, in which their samples begin anew.

A process that a method starts, and a thread that starts between two calls, are not noticed.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

NAME = "neighbours"
# A thread that waits for work takes less of a processor, and one that is busy takes all of it.
_BUSY_SHARE = 0.2
# On a crowded machine a busy thread gets little of a processor, and waits for it all the time.
_ALWAYS_SHARE = 0.8
_FIRST_LOOK_S = 0.05
_LOOK_S = 0.5
_FLUSHES = ("fsync", "fdatasync", "sync")
# RLIMIT_OFILE is another name of RLIMIT_NOFILE.
_LIMITS = tuple(
    name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
)


class MustBeAlone(BaseException):
    """A method has changed the process, so that no other one may be measured in it any more.

    It is no Exception, because no method may catch it.
    """


@dataclass(frozen=True)
class Surroundings:
    """The conditions that all methods of a process share, and none may change."""

    processors: frozenset[int]
    folder: str
    umask: str
    limits: tuple[int, ...]
    flushes: tuple[int, ...]

    @classmethod
    def now(cls) -> Surroundings:
        """Return the surroundings of this process at this moment."""
        return cls(
            processors=frozenset(os.sched_getaffinity(0)),
            folder=_folder(),
            umask=_umask(),
            limits=tuple(_soft_limit(name) for name in _LIMITS),
            flushes=tuple(id(getattr(os, name)) for name in _FLUSHES),
        )

    def changes(self, now: Surroundings) -> list[str]:
        """Return what is different now, in words. A limit may rise."""
        found = []
        if now.processors != self.processors:
            found.append("the processors it may run on")
        if now.folder != self.folder:
            found.append("the working directory")
        if now.umask != self.umask:
            found.append("the umask")
        pairs = zip(_LIMITS, self.limits, now.limits, strict=True)
        lowered = [name for name, before, after in pairs if after < before]
        if lowered:
            found.append(f"the limit {', '.join(lowered)}")
        if now.flushes != self.flushes:
            found.append("the functions of os that flush files")
        return found

    def doubts_flushes(self, now: Surroundings) -> bool:
        """Return whether files may not be flushed any more when the harness flushes them."""
        return now.flushes != self.flushes


def threads() -> set[int]:
    """Return the threads of this process by the kernel's numbers."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def are_busy(of_method: set[int]) -> bool:
    """Return whether threads that a closed method has left still use a processor."""
    if not of_method & threads():
        return False
    if not _use_a_processor(of_method, _FIRST_LOOK_S):
        return False
    return _use_a_processor(of_method, _LOOK_S)


def _use_a_processor(of_method: set[int], look_s: float) -> bool:
    before = _processor_times(of_method)
    begin = time.monotonic()
    time.sleep(look_s)
    passed_ns = 1e9 * (time.monotonic() - begin)
    now = _processor_times(of_method)
    used_ns = now.used_ns - before.used_ns
    waited_ns = now.waited_ns - before.waited_ns
    return used_ns > _BUSY_SHARE * passed_ns or used_ns + waited_ns > _ALWAYS_SHARE * passed_ns


class _ProcessorTimes(NamedTuple):
    """The time that threads have been on a processor, and have waited to get one."""

    used_ns: int
    waited_ns: int


def _processor_times(of_method: set[int]) -> _ProcessorTimes:
    """Return the times of all these threads together. One that has ended counts no more."""
    times = [_thread_times(thread) for thread in of_method]
    used_ns = sum(each.used_ns for each in times)
    return _ProcessorTimes(used_ns, sum(each.waited_ns for each in times))


def _thread_times(thread: int) -> _ProcessorTimes:
    try:
        # The numbers are explained in the kernel's scheduler/sched-stats.rst.
        used, waited, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
        return _ProcessorTimes(int(used), int(waited))
    except (OSError, ValueError):
        return _ProcessorTimes(0, 0)


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""


def _umask() -> str:
    # os.umask can only be asked by setting it, which other threads would notice.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return line.split()[1]
    return ""


def _soft_limit(name: str) -> int:
    soft, _ = resource.getrlimit(getattr(resource, name))
    # Without a limit, the number is negative.
    return soft if soft >= 0 else 2**63
