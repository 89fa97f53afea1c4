"""Has a loading process try every state. A loader that ends its process costs one state."""

from __future__ import annotations

from pathlib import Path

from harness.experiments.faults.jobs import bring, missing, stood_at
from harness.experiments.faults.records import StruckRecord
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession


def try_states(session: ExperimentSession) -> None:
    """Try the states of every case."""
    cases = missing(session, "tried")
    recorded = {case.id: bring(session, case) for case in cases}
    if cases:
        session.announce("what strikes leave")
    while cases:
        count = len(cases)
        reason = session.run_job("try", cases) or "the worker left the case out"
        cases = missing(session, "tried")
        # The cases go in turn, so the job stood at the first one that is not done. Where it stood
        # at none, a case before may have ended it, because what it left would disturb the others.
        is_blamed = bool(cases) and _blame_state(session, cases[0], recorded[cases[0].id], reason)
        if len(cases) == count and not is_blamed:
            session.fail(cases[0], "load", reason)
            cases = cases[1:]


def _blame_state(session: ExperimentSession, case: Case, recorded: Path, reason: str) -> bool:
    """Store that a state has ended the process that loaded it.

    Return False where the process stood at none.
    """
    at = stood_at(recorded)
    if at is None:
        return False
    at["reason"] = f"{at['reason']} (its load ended the process: {reason})"
    session.add(StruckRecord(kind="struck", case=case.id, process=session.slot, rank=0, **at))
    return True
