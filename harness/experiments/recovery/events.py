"""The events of each rank of a recovery job, with instants on the clock that the node shares.

A rank appends each event with one system call, so that those before a SIGKILL remain.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """An event of one rank. `at_ns` is an instant of the system's monotonic clock."""

    rank: int
    name: str
    at_ns: int
    values: dict[str, Any]


class EventLog:
    """Appends the events of one rank to a file."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank-{rank}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, name: str, **values: Any) -> None:
        """Append an event that happens now."""
        line = json.dumps({"name": name, "at_ns": time.monotonic_ns(), **values})
        os.write(self._file, f"{line}\n".encode())


def read_events(folder: Path) -> list[Event]:
    """Return the events of all ranks of a job in the order of time. A torn line is left out."""
    events = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        rank = int(path.stem.removeprefix("rank-"))
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                values = json.loads(line)
                events.append(Event(rank, values.pop("name"), values.pop("at_ns"), values))
    return sorted(events, key=lambda event: event.at_ns)
