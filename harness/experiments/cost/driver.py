"""Watches one save of each method at the system calls, and marks what nothing makes durable."""

from __future__ import annotations

from harness.durability.watch import watch_saves
from harness.wire.driving import ExperimentSession
from harness.wire.records import FindingRecord


def after_stages(session: ExperimentSession) -> None:
    """Watch one save of each case, and look where its files are."""
    watch_saves(session)
    volatile = session.volatile()
    if volatile is None or session.slot > 0:
        return
    for case in session.cases:
        record = FindingRecord(
            kind="finding",
            case=case.id,
            process=session.slot,
            rank=0,
            guard="volatile",
            weight="mark",
            sentence=f"{volatile}, so nothing there is ever durable",
        )
        session.add(record)
