"""Helps the jobs of the experiment: whose turn it is, and which strike ended a process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from harness.experiments.faults.recorded_save import AT, BEGIN
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders


def missing(session: ExperimentSession, kind: str) -> list[Case]:
    """Return the cases of which the run has no record of a kind."""
    return [case for case in session.cases if not session.has(kind, case)]


def bring(session: ExperimentSession, case: Case) -> Path:
    """Return the folder of a case's recording in scratch, filled from the run where it is empty."""
    recorded = Folders(session.scratch).recording(case)
    if not recorded.exists():
        shutil.copytree(session.files(case), recorded)
    return recorded


def keep(session: ExperimentSession, case: Case) -> None:
    """Store a case's recording with the run, but not how far the present process has come.

    A resumed run begins its stage anew, and would leave out what it has not done.
    """
    recorded = Folders(session.scratch).recording(case)
    ignore = shutil.ignore_patterns(AT, BEGIN)
    shutil.copytree(recorded, session.files(case), dirs_exist_ok=True, ignore=ignore)


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
