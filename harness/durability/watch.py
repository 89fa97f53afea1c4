"""Watches one untimed save of each case at the system calls, and stores the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.durability import strace
from harness.durability.recording import Recording
from harness.durability.summary import never, unknown
from harness.wire.case import TRACE, Case
from harness.wire.driving import ExperimentSession


def watch_saves(session: ExperimentSession) -> None:
    """Trace one save of each case in the first process slot, and store what its calls show.

    If strace cannot be used, the records say why, so that no row lacks its verdict silently.
    """
    cases = [case for case in session.traced_cases if not session.has("syscalls", case)]
    if session.slot > 0 or not cases:
        return
    session.announce("system calls")
    for number, sharing in enumerate(session.sharing(cases)):
        _watch_saves_of(session, sharing, session.jobs / f"strace-{number}.log")


def _watch_saves_of(session: ExperimentSession, cases: Sequence[Case], log: Path) -> None:
    """Watch one save of each of some cases that share a process."""
    obstacle = _trace(session, cases, log)
    recording = Recording(log) if obstacle is None else None
    volatile = session.volatile()
    saves = session.scratch / "saves"
    for case in cases:
        if session.has("failure", case):
            continue
        if recording is None:
            record = unknown(case.id, str(obstacle))
        else:
            record = recording.analyse(case.id, saves / case.id)
        session.add(record if volatile is None else never(record, volatile))


def _trace(session: ExperimentSession, cases: Sequence[Case], log: Path) -> str | None:
    """Run one job on the cases under strace, and return the reason if that is impossible."""
    obstacle = session.out_of_sight() or strace.available()
    if obstacle is not None:
        return obstacle
    return session.run_job(TRACE, cases, strace.command(log)) or None
