"""The records of a run while it is measured: stored, counted, and announced to whoever watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from harness.driver.progress import Progress
from harness.run.store import Run
from harness.wire.records import FailureRecord, Record, Status


@dataclass(frozen=True)
class Event:
    """A message for the person who watches. Without a text it only says that something is new."""

    text: str = ""


class Ledger:
    """Stores every record once, and keeps the progress of the run up to date.

    Several threads may run jobs at once. A lock lets one of them store at a time.
    """

    def __init__(self, run: Run, on_event: Callable[[Event], None]) -> None:
        self.run = run
        self._lock = threading.RLock()
        self.progress = Progress(run.records)
        self._on_event = on_event
        self._items = {item.case.id: item for item in run.plan}

    @property
    def failed(self) -> set[str]:
        """The identifiers of the cases that have failed."""
        return self.progress.failed

    def announce(self, text: str) -> None:
        """Tell the person who watches."""
        with self._lock:
            self._on_event(Event(text))

    def absorb(self, line: str) -> Record | None:
        """Store one line of a worker; None where it is there already. Raises InvalidLine."""
        with self._lock:
            record = self.run.absorb(line)
            if record is not None:
                self._note(record)
        return record

    def add(self, record: Record) -> None:
        """Store a record of the driver's own."""
        with self._lock:
            self.run.append(record)
            self._note(record)

    def fail(
        self,
        case: str,
        slot: int,
        rank: int,
        phase: str,
        reason: str,
        status: Status = "failed",
    ) -> None:
        """Store why a case gives no number, unless it is stored already that it gives none."""
        failure = FailureRecord(
            kind="failure",
            case=case,
            process=slot,
            rank=rank,
            status=status,
            phase=phase,
            reason=reason,
        )
        with self._lock:
            if case not in self.failed:
                self.add(failure)

    def _note(self, record: Record) -> None:
        self.progress.add(record)
        self._on_event(Event(self._in_words(record)))

    def _in_words(self, record: Record) -> str:
        """Return a failure as a line for the person who watches; nothing for other records."""
        if not isinstance(record, FailureRecord):
            return ""
        item = self._items.get(record.case)
        if item is None:
            return f"{record.status} in {record.phase}: {record.reason}"
        name = f"{item.case.framework} {item.case.method}".strip()
        if item.is_expected(record.status, record.reason):
            return f"{name}: {record.status} as declared, in {record.phase}: {record.reason}"
        return f"{name}: {record.status} in {record.phase}: {record.reason}"
