"""Runs the jobs of the experiment: records each save, strikes others for real, has states tried."""

from __future__ import annotations

import shutil
from functools import partial

from harness.durability import gate, strace
from harness.experiments.faults.disk_jobs import cut_power
from harness.experiments.faults.killing_jobs import kill_saves
from harness.experiments.faults.recording_jobs import record
from harness.experiments.faults.striking_jobs import fail_calls, preempt
from harness.experiments.faults.trying_jobs import try_states
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders


def after_stages(session: ExperimentSession) -> None:
    """Record a save of each case, strike others, and try what strikes leave."""
    if session.slot > 0:
        return
    obstacle = session.out_of_sight() or strace.available()
    if obstacle is not None:
        for case in session.cases:
            session.refuse(case, "record", f"no save can be recorded here: {obstacle}")
        return
    record(session)
    # Everything that follows begins with the recordings that are stored with the run.
    shutil.rmtree(Folders(session.scratch).recordings, ignore_errors=True)
    no_gate = gate.available() or ""
    session.side_by_side(partial(_strike, no_gate=no_gate))
    preempt(session)
    cut_power(session)
    session.side_by_side(try_states)


def _strike(session: ExperimentSession, no_gate: str) -> None:
    fail_calls(session, no_gate)
    kill_saves(session, no_gate)
