"""Strikes saves for real: their system calls fail, or their allocation ends."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.durability import trees
from harness.experiments.faults import alarm
from harness.experiments.faults import left as lefts
from harness.experiments.faults.jobs import (
    begin_anew,
    bring,
    gate_command,
    missing,
    stood_at,
    unfinished,
)
from harness.experiments.faults.left import Left
from harness.experiments.faults.recorded_save import report_file
from harness.experiments.faults.records import UNHANDLED, ErrorsRecord, PreemptedRecord
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders


def fail_calls(session: ExperimentSession, no_gate: str) -> None:
    """Have calls of every case's saves fail. `no_gate` says why that is impossible here."""
    cases = missing(session, "errors")
    for case in cases if no_gate else []:
        record = ErrorsRecord(
            kind="errors", case=case.id, process=session.slot, rank=0, hit=0, not_done=no_gate
        )
        session.add(record)
    if no_gate or not cases:
        return
    session.announce("errors of its system calls")
    recorded = {case.id: bring(session, case) for case in cases}
    cases = unfinished(session, "errors", ErrorsRecord)
    while cases:
        count = len(cases)
        reason = session.run_job("fail", cases, gate_command(session)) or "the worker left it out"
        cases = unfinished(session, "errors", ErrorsRecord)
        # The cases go in turn, so the job stood at the first one that is not done. Where it stood
        # at none, a case before may have ended it, because what it left would disturb the others.
        is_blamed = bool(cases) and _blame_error(cases[0], recorded[cases[0].id], reason)
        if len(cases) == count and not is_blamed:
            session.fail(cases[0], "save", reason)
            cases = cases[1:]


def _blame_error(case: Case, recorded: Path, reason: str) -> bool:
    """Store what a save has left that never ended, or ended its process.

    Return False where the process stood at none.
    """
    at = stood_at(recorded)
    if at is None:
        return False
    is_next = at["strike"] == "next save"
    words = lefts.words_of_next(at["in_words"]) if is_next else at["in_words"]
    said = f"the save never ended, or ended its process ({reason})"
    _keep_left(recorded, at, words, said)
    return True


def _keep_left(recorded: Path, at: Mapping[str, Any], in_words: str, said: str) -> None:
    """Store the directory that a process has left which ended in a save, and take it away."""
    folder = Path(at["folder"])
    lefts.store(recorded, Left(at["strike"], in_words, at["expected"], said), trees.read(folder))
    shutil.rmtree(folder)


def preempt(session: ExperimentSession) -> None:
    """End the allocation of a save of every case."""
    cases = missing(session, "preempted")
    if cases:
        session.announce("the end of an allocation")
    recorded = {case.id: bring(session, case) for case in cases}
    cases = unfinished(session, "preempted", PreemptedRecord)
    while cases:
        reason = session.run_job("preempt", cases)
        for case in cases:
            if report_file(recorded[case.id], "preempted").exists():
                _add_unhandled(session, case, reason)
        still = unfinished(session, "preempted", PreemptedRecord)
        # The cases go in turn, so the job stood at the first one that is not done.
        if still and _keep_late(recorded[still[0].id], reason):
            pass  # Another process takes the strikes that follow.
        elif still == cases:
            session.fail(still[0], "save", reason or "the worker left the case out")
            still = still[1:]
        elif still:
            # It may have begun in the process that has ended.
            begin_anew(session, still[0])
        cases = still


def _keep_late(recorded: Path, reason: str) -> bool:
    """Store what a process has left whose grace was over in its save.

    Return False where it ended in another way.
    """
    at = stood_at(recorded) if alarm.has_killed(reason) else None
    if at is None:
        return False
    _keep_left(recorded, at, at["in_words"], at["said"])
    return True


def _add_unhandled(session: ExperimentSession, case: Case, reason: str) -> None:
    """Store what a process left that a SIGTERM has ended, where there was one."""
    folder = Folders(session.scratch).saves / case.id
    if folder.exists():
        expected = lefts.of_preemption(lefts.OF_UNHANDLED)
        left = Left("preemption", UNHANDLED, expected, f"the process ended: {reason}")
        lefts.store(bring(session, case), left, trees.read(folder))
        shutil.rmtree(folder)
