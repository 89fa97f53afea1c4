"""Strikes saves for real: their calls fail, they are killed, their allocation ends."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from harness.durability import gate, log, trees
from harness.durability.crashes import NotSeenError, trees_when_killed
from harness.durability.trees import Tree
from harness.durability.window import MissingMarkError
from harness.experiments.faults import EXPERIMENT
from harness.experiments.faults import left as lefts
from harness.experiments.faults.jobs import begin_anew, bring, missing, stood_at, unfinished
from harness.experiments.faults.left import Left
from harness.experiments.faults.recorded_save import (
    KILL_ORDER,
    kill_log,
    killed_name,
    read,
    report,
    report_file,
)
from harness.experiments.faults.records import (
    ErrorsRecord,
    KilledRecord,
    KillsRecord,
    PreemptedRecord,
)
from harness.experiments.faults.states import States
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
        reason = session.run_job("fail", cases, _gate(session)) or "the worker left it out"
        cases = unfinished(session, "errors", ErrorsRecord)
        # The cases go in turn, so the job stood at the first one that is not done.
        if cases and not _blame_error(cases[0], recorded[cases[0].id], reason):
            session.fail(cases[0], "save", reason)
            cases = cases[1:]


def _blame_error(case: Case, recorded: Path, reason: str) -> bool:
    """Store what a save has left that never ended, or ended its process.

    Return False where the process stood at none.
    """
    at = stood_at(recorded)
    if at is None:
        return False
    said = f"the save never ended, or ended its process ({reason})"
    folder = Path(at["folder"])
    lefts.store(recorded, Left("error", at["in_words"], at["expected"], said), trees.read(folder))
    shutil.rmtree(folder)
    return True


def kill(session: ExperimentSession, no_gate: str) -> None:
    """Kill saves of every case, and compare what is left with what the log of their calls says."""
    for case in missing(session, "kills"):
        bring(session, case)
    cases = unfinished(session, "kills", KillsRecord)
    if not cases:
        return
    session.announce("real kills")
    changes = {case.id: [] if no_gate else _changes(session, case) for case in cases}
    tasks = []
    for case in cases:
        recorded = bring(session, case)
        (recorded / KILL_ORDER).write_text(json.dumps(changes[case.id]))
        tasks += [case] * len(changes[case.id])
    reason = session.run_job("kill", tasks, _gate(session)) if tasks else ""
    for case in cases:
        for change in changes[case.id]:
            _compare(session, case, change)
        record = KillsRecord(
            kind="kills",
            case=case.id,
            process=session.slot,
            rank=0,
            kills=len(changes[case.id]),
            not_done=no_gate or reason,
        )
        report(bring(session, case), record)
        unfinished(session, "kills", KillsRecord)


def _changes(session: ExperimentSession, case: Case) -> list[int]:
    """Return before which changes of a save it is killed, counted from 1.

    They are the first and the last one, those around every rename, and others by chance.
    """
    wanted = int(EXPERIMENT.settings(case)["kills"])
    states = States(bring(session, case), case.id, instants=1)
    changing = [step for step in states.all_steps if step.changes]
    count = len(changing)
    chosen = [1, count] if count else []
    for number, step in enumerate(changing, start=1):
        if step.in_words.startswith("the rename"):
            chosen += [number, number + 1]
    others = [number for number in range(1, count + 1) if number not in chosen]
    random.Random(case.id).shuffle(others)
    within = [number for number in dict.fromkeys(chosen + others) if number <= count]
    return sorted(within[:wanted])


def _compare(session: ExperimentSession, case: Case, change: int) -> None:
    """Store what a killed save has left, and in what it differs from what its calls predict."""
    recorded = bring(session, case)
    folder = Folders(session.scratch).saves / killed_name(case, change)
    if not folder.exists():
        return
    real = trees.read(folder)
    words = f"killed before change {change}"
    lefts.store(recorded, Left("real kill", words, lefts.of_kill(change)), real)
    calls = recorded / kill_log(change)
    before = read(recorded).before
    session.add(
        KilledRecord(
            kind="killed",
            case=case.id,
            process=session.slot,
            rank=0,
            change=change,
            difference=_difference(calls, case.id, folder, before, real),
        )
    )
    calls.unlink(missing_ok=True)
    shutil.rmtree(folder)


def _difference(file: Path, case_id: str, root: Path, before: Tree, real: Tree) -> str:
    """Return in what the files differ from all that the log allows; empty where they do not."""
    found = "the log shows no save"
    try:
        for predicted in trees_when_killed(log.read(file), case_id, root, before):
            differs = trees.difference(predicted, real)
            if differs is None:
                return ""
            found = differs
    except (MissingMarkError, NotSeenError, OSError) as error:
        return str(error)
    return found


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
        if still == cases:
            # The cases go in turn, so the job stood at the first one.
            session.fail(still[0], "save", reason or "the worker left the case out")
            still = still[1:]
        elif still:
            # It may have begun in the process that has ended.
            begin_anew(session, still[0])
        cases = still


def _add_unhandled(session: ExperimentSession, case: Case, reason: str) -> None:
    """Store what a process left that a SIGTERM has ended, where there was one."""
    folder = Folders(session.scratch).saves / case.id
    if folder.exists():
        words = "SIGTERM after save had returned, without a handler"
        expected = lefts.of_preemption(lefts.UNHANDLED)
        left = Left("preemption", words, expected, f"the process ended: {reason}")
        lefts.store(bring(session, case), left, trees.read(folder))
        shutil.rmtree(folder)


def _gate(session: ExperimentSession) -> list[str]:
    folders = Folders(session.scratch)
    return gate.command(folders.saves, folders.gate_report)
