"""Helps the jobs of the experiment: whose turn it is, what to store, which strike ended a process.

A stage counts as done once its record is in the run. The record comes after the files of the stage,
so that an interrupted run does the stage again from its begin.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from harness.durability import gate
from harness.experiments.faults.recorded_save import AT, BEGIN, report_file
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders
from harness.wire.records import StageRecord


def missing(session: ExperimentSession, kind: str) -> list[Case]:
    """Return the cases of which the run has no record of a kind."""
    return [case for case in session.cases if not session.has(kind, case)]


def unfinished(
    session: ExperimentSession, kind: str, record_class: type[StageRecord]
) -> list[Case]:
    """Store what processes have reported of a stage, and return the cases that are not done."""
    for case in missing(session, kind):
        file = report_file(Folders(session.scratch).recording(case), kind)
        if file.exists():
            keep(session, case)
            session.add(record_class(**json.loads(file.read_text())))
    return missing(session, kind)


def bring(session: ExperimentSession, case: Case) -> Path:
    """Return the folder of a case's recording in scratch, filled from the run where it is empty."""
    recorded = Folders(session.scratch).recording(case)
    if not recorded.exists():
        stored = session.files(case)
        _complete(stored)
        shutil.copytree(stored, recorded)
    return recorded


def begin_anew(session: ExperimentSession, case: Case) -> None:
    """Take away what a process has left that ended before the stage of its case was done."""
    shutil.rmtree(Folders(session.scratch).recording(case))
    bring(session, case)


def keep(session: ExperimentSession, case: Case) -> None:
    """Store a case's recording with the run, but not how far the present process has come.

    A resumed run begins its stage anew, and would leave out what it has not done. An interruption
    leaves the recording that was stored before, or the whole new one.
    """
    recorded = Folders(session.scratch).recording(case)
    stored = session.files(case)
    copied = stored.with_suffix(".new")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(recorded, copied, ignore=shutil.ignore_patterns(AT, BEGIN))
    copied.rename(_whole(stored))
    _complete(stored)


def _complete(stored: Path) -> None:
    """Put a whole new recording in the place of the one that was stored before."""
    if _whole(stored).exists():
        shutil.rmtree(stored, ignore_errors=True)
        _whole(stored).rename(stored)


def _whole(stored: Path) -> Path:
    return stored.with_suffix(".whole")


def stood_at(recorded: Path) -> dict[str, Any] | None:
    """Return at which strike a process of a case ended, and begin behind it next time.

    Return None where it stood at none.
    """
    file = recorded / AT
    if not file.exists():
        return None
    at: dict[str, Any] = json.loads(file.read_text())
    (recorded / BEGIN).write_text(str(at["number"] + 1))
    file.unlink()
    return at


def gate_command(session: ExperimentSession) -> list[str]:
    """Return the command that starts a process in which the gate can strike saves."""
    folders = Folders(session.scratch)
    return gate.command(folders.saves, folders.gate_report)
