"""The events of each process of a recovery job, with instants on the clock of its node.

A process appends each event with one system call, so that those before a SIGKILL remain.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.wire.nodes import node_name


@dataclass(frozen=True)
class Event:
    """An event of one process of a rank.

    `at_ns` is an instant of the system's monotonic clock. `process` names the process, because a
    launcher that starts the ranks again gives a rank several ones in one job, and because processes
    of two nodes may have one number.
    """

    rank: int
    name: str
    at_ns: int
    values: dict[str, Any]
    process: str = ""


class EventLog:
    """Appends the events of this process to a file. The first is that it was started, on a node."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        node = node_name()
        path = folder / f"{rank}-{os.getpid()}-{node}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._append("started", _started_ns(), {"node": node})

    def write(self, name: str, **values: Any) -> None:
        """Append an event that happens now."""
        self._append(name, time.monotonic_ns(), values)

    def _append(self, name: str, at_ns: int, values: dict[str, Any]) -> None:
        line = json.dumps({"name": name, "at_ns": at_ns, **values})
        # On a full disk, the line before may be torn. So this one begins on a line of its own.
        data = f"\n{line}\n".encode()
        # A full disk cuts a write short without an error. The next write then has one.
        while data:
            written_bytes = os.write(self._file, data)
            data = data[written_bytes:]


def files_of(folder: Path, rank: int) -> list[Path]:
    """Return the files to which the processes of a rank append their events."""
    return sorted(folder.glob(f"{rank}-*.jsonl"))


def read_events(folder: Path) -> list[Event]:
    """Return the events of all processes of a job in the order of time."""
    events: list[Event] = []
    for path in sorted(folder.glob("*.jsonl")):
        events += events_of(path)
    return sorted(events, key=lambda event: event.at_ns)


def events_of(path: Path) -> list[Event]:
    """Return the events of one process from its file, without empty and torn lines."""
    rank = int(path.stem.partition("-")[0])
    events = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            values = json.loads(line)
            name, at_ns = values.pop("name"), values.pop("at_ns")
            events.append(Event(rank, name, at_ns, values, path.stem))
    return events


def started_ticks(process: int) -> int:
    """Return when a process was started, in ticks since the boot; see proc_pid_stat(5).

    It tells a process from a later one with the same number. Raises FileNotFoundError, or
    ProcessLookupError, where there is no such process.
    """
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[19])


def _started_ns() -> int:
    """Return when this process was started, to a hundredth of a second.

    The kernel counts that on the clock of the boot. Unlike the monotonic clock of the other events,
    it goes on while the machine sleeps.
    """
    started_ns = started_ticks(os.getpid()) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns
    return time.monotonic_ns() - age_ns
