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

NAME = "neighbours"
# A thread that waits for work takes less of a processor, and one that is busy takes all of it.
_BUSY_SHARE = 0.2
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
    before_ns = _processor_ns(of_method)
    begin = time.monotonic()
    time.sleep(look_s)
    passed_s = time.monotonic() - begin
    used_s = (_processor_ns(of_method) - before_ns) / 1e9
    return used_s > _BUSY_SHARE * passed_s


def _processor_ns(of_method: set[int]) -> int:
    """Return the processor time that threads have used. One that has ended counts no more."""
    return sum(_thread_ns(thread) for thread in of_method)


def _thread_ns(thread: int) -> int:
    try:
        # The first number is the time on a processor, see the kernel's scheduler/sched-stats.rst.
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
    except (OSError, IndexError):
        return 0


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
