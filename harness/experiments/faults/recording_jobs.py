"""Records one save of each case under a tracer, and stores the recording with the run."""

from __future__ import annotations

from pathlib import Path

from harness.durability import strace
from harness.durability.window import MissingMarkError, case_lines
from harness.experiments.faults.jobs import missing, unfinished
from harness.experiments.faults.recorded_save import report_file, write_calls
from harness.experiments.faults.records import RecordedRecord
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders


def record(session: ExperimentSession) -> None:
    """Record one save of each case that has no recording in the run."""
    cases = missing(session, "recorded")
    while cases:
        session.announce("one save, call by call")
        log = session.jobs / "calls.log"
        reason = session.run_job("record", cases, strace.command(log, payload=True))
        _add_calls(session, cases, log)
        log.unlink(missing_ok=True)
        still = unfinished(session, "recorded", RecordedRecord)
        if still == cases:
            # The cases go in turn, so the job stood at the first one.
            session.fail(still[0], "record", reason or "the worker left the case out")
            still = still[1:]
        cases = still


def _add_calls(session: ExperimentSession, cases: list[Case], log: Path) -> None:
    """Put the calls of each save that a process has reported beside the files of its recording."""
    # The writes of the recordings' own files need not be stored. The name of the scratch directory
    # is the run's, so no other path has both.
    own = f"/{session.scratch.name}/recordings/"
    with open(log, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line for line in file if own not in line]
    for case in cases:
        recorded = Folders(session.scratch).recording(case)
        reported = report_file(recorded, "recorded")
        if not reported.exists():
            continue
        try:
            write_calls(recorded, case_lines(lines, case.id))
        except (MissingMarkError, OSError) as error:
            # The log holds every byte that was written, so a full disk may have cut it off.
            reported.unlink()
            session.fail(case, "record", str(error))
