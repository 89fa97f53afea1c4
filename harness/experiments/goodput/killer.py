"""Kills ranks of the running job at given instants, whatever they are doing then."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

_LOOK_S = 0.005  # between two looks for a process where there is none
_WORKER = ["-m", "harness.worker"]


@dataclass(frozen=True)
class Struck:
    """A kill: its instant in nanoseconds, and what it struck."""

    at_ns: int
    what: str


@dataclass
class Killer:
    """A thread that kills one process of the job at each instant.

    It takes a rank at random. While the launcher has not started any yet, it takes the launcher.
    Where a process ends just then, it waits for the next one.
    """

    at_ns: Sequence[int]
    seed: int
    struck: list[Struck] = field(default_factory=list)
    _victims: set[psutil.Process] = field(default_factory=set)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Killer:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        draw = random.Random(self.seed)
        for at_ns in self.at_ns:
            self._stopped.wait(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))
            while not self._stopped.is_set() and not self._strike(draw):
                self._stopped.wait(_LOOK_S)

    def _strike(self, draw: random.Random) -> bool:
        """Kill a process of the job. Return whether there was one."""
        processes = psutil.Process().children(recursive=True)
        ranks = [process for process in processes if _is_rank(process)]
        launchers = [process for process in processes if _is_launcher(process)]
        victims = sorted(ranks or launchers, key=lambda process: process.pid)
        if not victims:
            return False
        victim = draw.choice(victims)
        # A process takes a moment to die.
        if victim in self._victims:
            return False
        try:
            victim.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return False
        self._victims.add(victim)
        self.struck.append(Struck(time.monotonic_ns(), "a rank" if ranks else "the launcher"))
        return True


def _is_rank(process: psutil.Process) -> bool:
    """Return whether a process is a rank, and not one that a rank has forked, or its launcher."""
    with contextlib.suppress(psutil.Error):
        parent = process.parent()
        is_fork = parent is not None and parent.cmdline()[1:3] == _WORKER
        return process.cmdline()[1:3] == _WORKER and not is_fork and _is_alive(process)
    return False


def _is_launcher(process: psutil.Process) -> bool:
    """Return whether a process is the first one of a job, and not an orphan that came from one.

    The first process leads a session, and nothing adopts it.
    """
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        leads = os.getsid(process.pid) == process.pid
        return leads and process.ppid() == os.getpid() and _is_alive(process)
    return False


def _is_alive(process: psutil.Process) -> bool:
    """Return False for a process that has ended and that nobody has asked about yet."""
    return bool(process.status() != psutil.STATUS_ZOMBIE)
