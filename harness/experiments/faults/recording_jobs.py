"""Records one save of each case under a tracer, and stores the recording with the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.durability import strace
from harness.durability.window import case_lines
from harness.experiments.faults.jobs import keep, missing
from harness.experiments.faults.recorded_save import write_calls
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders


def record(session: ExperimentSession) -> None:
    """Record one save of each case that has no recording in the run."""
    while cases := missing(session, "recorded"):
        session.announce("one save, call by call")
        log = session.jobs / "calls.log"
        reason = session.run_job("record", cases, strace.command(log, payload=True))
        _store(session, [case for case in cases if session.has("recorded", case)], log)
        log.unlink(missing_ok=True)
        still = missing(session, "recorded")
        if still == cases:
            # The cases go in turn, so the job stood at the first one.
            session.fail(still[0], "record", reason or "the worker left the case out")


def _store(session: ExperimentSession, cases: Sequence[Case], log: Path) -> None:
    # The writes of the recordings' own files need not be stored. The name of the scratch directory
    # is the run's, so no other path has both.
    own = f"/{session.scratch.name}/recordings/"
    with open(log, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line for line in file if own not in line]
    for case in cases:
        write_calls(Folders(session.scratch).recording(case), case_lines(lines, case.id))
        keep(session, case)
