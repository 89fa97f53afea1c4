"""The processes under the gate: the command and all that it has started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable

import psutil

_PR_SET_CHILD_SUBREAPER = 36
# A process with much memory takes seconds to end.
_END_S = 30.0
_LOOK_S = 0.002


def adopt_orphans() -> None:
    """Let processes whose parent dies become children of this one, so that they stay below it.

    Raises OSError if the kernel refuses.
    """
    unused = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), unused, unused, unused) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def below() -> list[psutil.Process]:
    """Return the processes below this one, without those that have ended."""
    processes = psutil.Process().children(recursive=True)
    return [process for process in processes if _is_running(process)]


def tracers() -> frozenset[int]:
    """Return the processes that trace one below this one."""
    return frozenset(_tracer(process) for process in below()) - {0}


def kill_but(spared: frozenset[int]) -> None:
    """Kill the processes that are below this one now, but not the spared ones."""
    for process in below():
        if process.pid not in spared:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def kill_session(session: int) -> None:
    """Kill the processes of a session that are below this one, but not those that trace them."""
    spared = tracers()
    for process in below():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if process.pid not in spared and os.getsid(process.pid) == session:
                process.kill()


def kill_group(group: int) -> None:
    """Kill the processes of a process group that are below this one."""
    _kill_groups(lambda other: other == group)


def kill_other_groups(group: int) -> None:
    """Kill the processes below this one that are neither in a process group nor in this one's."""
    spared = (group, os.getpgid(0))
    _kill_groups(lambda other: other not in spared)


def _kill_groups(is_meant: Callable[[int], bool]) -> None:
    for process in below():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if is_meant(os.getpgid(process.pid)):
                process.kill()


def kill_all() -> None:
    """Kill until no process is below this one, because one may be starting another one just now."""
    deadline_s = time.monotonic() + _END_S
    while below() and time.monotonic() < deadline_s:
        kill_but(frozenset())
        time.sleep(_LOOK_S)


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def _tracer(process: psutil.Process) -> int:
    """Return the process that traces another one, or 0 for none."""
    with contextlib.suppress(OSError), open(f"/proc/{process.pid}/status") as status:
        for line in status:
            if line.startswith("TracerPid:"):
                return int(line.split()[1])
    return 0
