"""Watches one untimed save of each case at the system calls, and stores what it found."""

from __future__ import annotations

from harness.durability import syscalls
from harness.wire.case import TRACE
from harness.wire.driving import ExperimentSession
from harness.wire.records import SyscallsRecord


def watch_saves(session: ExperimentSession) -> None:
    """Trace one save of each case in the first process slot, where strace can be had.

    Where it cannot, the record says why, so that a row never misses its verdict silently.
    """
    cases = [case for case in session.traced_cases if not session.has("syscalls", case)]
    if session.slot > 0 or not cases:
        return
    session.announce("system calls")
    log = session.jobs / "strace.log"
    reason = session.out_of_sight() or syscalls.available()
    if reason is None:
        reason = session.run_job(TRACE, cases, syscalls.command(log)) or None
    calls = None if reason else syscalls.Log(log)
    checkpoints = session.scratch / "trial"
    for case in cases:
        if session.has("failure", case):
            continue
        verdict = calls.analyse(case.id, checkpoints) if calls else syscalls.unknown(str(reason))
        session.add(SyscallsRecord(kind="syscalls", case=case.id, **vars(verdict)))
