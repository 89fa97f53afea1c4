"""Runs the jobs of the experiment: records each save under a tracer, and has its states tried."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from harness.durability import strace
from harness.durability.window import case_lines
from harness.experiments.faults.recorded_save import AT, BEGIN, write_calls
from harness.experiments.faults.records import StruckRecord
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders
from harness.wire.records import FailureRecord

_OWN = "/recordings/"
"""What the paths of the recordings' own files have in them, whose writes need not be stored."""


def after_stages(session: ExperimentSession) -> None:
    """Record a save of each case, and try what strikes leave of it."""
    if session.slot > 0:
        return
    obstacle = session.out_of_sight() or strace.available()
    if obstacle is not None:
        for case in _missing(session, "tried"):
            _refuse(session, case, obstacle)
        return
    _record(session)
    _try(session)


def _missing(session: ExperimentSession, kind: str) -> list[Case]:
    return [case for case in session.cases if not session.has(kind, case)]


def _refuse(session: ExperimentSession, case: Case, obstacle: str) -> None:
    session.add(
        FailureRecord(
            kind="failure",
            case=case.id,
            process=session.slot,
            rank=0,
            status="unsupported",
            phase="record",
            reason=f"no save can be recorded here: {obstacle}",
        )
    )


def _record(session: ExperimentSession) -> None:
    """Record one save of each case that has no recording in the run."""
    while True:
        missing = _missing(session, "recorded")
        if not missing:
            return
        session.announce("one save, call by call")
        log = session.jobs / "calls.log"
        reason = session.run_job("record", missing, strace.command(log, payload=True))
        done = [case for case in missing if session.has("recorded", case)]
        _keep(session, done, log)
        log.unlink(missing_ok=True)
        still = _missing(session, "recorded")
        if still == missing:
            # The cases go in turn, so the job stood at the first one.
            session.fail(still[0], "record", reason or "the worker left the case out")


def _keep(session: ExperimentSession, cases: Sequence[Case], log: Path) -> None:
    """Store the recordings of cases with the run."""
    folders = Folders(session.scratch)
    with open(log, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line for line in file if _OWN not in line]
    for case in cases:
        recorded = folders.recording(case)
        write_calls(recorded, case_lines(lines, case.id))
        shutil.copytree(recorded, session.files(case), dirs_exist_ok=True)


def _try(session: ExperimentSession) -> None:
    """Try the states of every case. A loader that ends its process costs one state."""
    folders = Folders(session.scratch)
    missing = _missing(session, "tried")
    for case in missing:
        shutil.copytree(session.files(case), folders.recording(case), dirs_exist_ok=True)
    if missing:
        session.announce("what strikes leave")
    stood_at: tuple[str, int] | None = None
    while missing:
        reason = session.run_job("try", missing)
        missing = _missing(session, "tried")
        if not missing:
            return
        # The cases go in turn, so the job stood at the first one that is not done.
        case = missing[0]
        number = _blame(session, case, folders.recording(case), reason)
        if number is None or stood_at == (case.id, number):
            session.fail(case, "load", reason or "the worker left the case out")
            missing = missing[1:]
        stood_at = None if number is None else (case.id, number)


def _blame(session: ExperimentSession, case: Case, recorded: Path, reason: str) -> int | None:
    """Store that a state has ended the process that loaded it, and begin behind it next time.

    Return the state's number; None where the process stood at none.
    """
    file = recorded / AT
    if not file.exists():
        return None
    at = json.loads(file.read_text())
    session.add(
        StruckRecord(
            kind="struck",
            case=case.id,
            process=session.slot,
            rank=0,
            **at,
            verdict="refused",
            got="",
            reason=f"the loading process ended: {reason}",
        )
    )
    number = int(at["number"])
    (recorded / BEGIN).write_text(str(number + 1))
    file.unlink()
    return number
