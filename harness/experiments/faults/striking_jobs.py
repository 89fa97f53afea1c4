"""Strikes saves for real: their calls fail, they are killed, their allocation ends."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.durability import gate, log, trees
from harness.durability.crashes import NotSeenError, tree_when_killed
from harness.durability.trees import Tree
from harness.durability.window import MissingMarkError
from harness.experiments.faults import EXPERIMENT, alarm, kill_order
from harness.experiments.faults import left as lefts
from harness.experiments.faults.jobs import begin_anew, bring, missing, stood_at, unfinished
from harness.experiments.faults.kill_order import Kill
from harness.experiments.faults.left import Left
from harness.experiments.faults.recorded_save import read, report, report_file
from harness.experiments.faults.records import (
    UNHANDLED,
    ErrorsRecord,
    KilledRecord,
    KillsRecord,
    PreemptedRecord,
)
from harness.experiments.faults.states import States
from harness.wire import endings
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders

Orders = Mapping[str, Sequence[Kill]]
"""Kills by the names of their cases."""

_ROUNDS = 3
"""Kills that come too late are ordered again before other changes, at most twice."""


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
        reason = session.run_job("fail", cases, _gate(session)) or "the worker left it out"
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


def kill(session: ExperimentSession, no_gate: str) -> None:
    """Kill saves of every case, and compare what is left with what the log of their calls says."""
    for case in missing(session, "kills"):
        bring(session, case)
    cases = unfinished(session, "kills", KillsRecord)
    if not cases:
        return
    session.announce("real kills")
    crashed: dict[str, str] = {}
    reason = no_gate or _count_changes(session, cases, crashed)
    cases = missing(session, "kills")
    ordered = {case.id: _order(session, case) for case in cases}
    wanted = {case: len(kills) for case, kills in ordered.items()}
    turns = ordered
    for _ in range(_ROUNDS):
        tasks = [case for case in cases for _ in turns[case.id]]
        if not tasks:
            break
        reason = _run_forked(session, tasks)
        ended = _ended(session, turns)
        cases = missing(session, "kills")
        for case in cases:
            _take_crashes(session, case, ended[case.id], crashed)
        turns = {case.id: _instead(session, case, ordered, turns, ended) for case in cases}
        ordered = {case.id: [*ordered[case.id], *turns[case.id]] for case in cases}
    for case in missing(session, "kills"):
        record = KillsRecord(
            kind="kills",
            case=case.id,
            process=session.slot,
            rank=0,
            kills=wanted[case.id],
            not_done=reason or crashed.get(case.id) or _not_counted(case, ordered[case.id]),
        )
        report(bring(session, case), record)
        unfinished(session, "kills", KillsRecord)


def _run_forked(session: ExperimentSession, tasks: Sequence[Case]) -> str:
    """Do each task in a process of its own. Return why that broke, or nothing."""
    endings.forget(Folders(session.scratch))
    return session.run_job("kill", tasks, _gate(session))


def _ended(session: ExperimentSession, turns: Orders) -> dict[str, dict[Kill, int]]:
    """Return the exit codes of the processes that were to be killed, by the names of the cases."""
    codes = iter(endings.read(Folders(session.scratch)))
    ended: dict[str, dict[Kill, int]] = {}
    for name, turn in turns.items():
        # A job that broke has fewer codes than kills.
        ended[name] = dict(zip(turn, codes, strict=False))
    return ended


def _take_crashes(
    session: ExperimentSession, case: Case, ended: Mapping[Kill, int], crashed: dict[str, str]
) -> None:
    """Note the first process of a case that ended in another way than by its kill.

    Such a process may leave anything, which is no kill's.
    """
    for kill, code in ended.items():
        folder = _folder(session, case, kill)
        # A process whose save came to its end before the kill has taken its folder away.
        if folder.exists() and code != -_signal_of(kill):
            words = f"one that was to be {kill.in_words} {endings.in_words(code)}"
            crashed.setdefault(case.id, words)
            (bring(session, case) / kill_order.log_name(kill)).unlink(missing_ok=True)
            shutil.rmtree(folder)


def _instead(
    session: ExperimentSession,
    case: Case,
    ordered: Orders,
    turns: Orders,
    ended: Mapping[str, Mapping[Kill, int]],
) -> list[Kill]:
    """Store what the kills of a turn have left, and order others for those that came too late.

    A save may make fewer changes than the one that was counted. `ordered` are all kills so far.
    `ended` has the exit codes of the turn's processes. What crashed is not ordered again.
    """
    codes = ended[case.id]
    killed = [kill for kill, code in codes.items() if code == -_signal_of(kill)]
    reached = [kill for kill in killed if _compare(session, case, kill)]
    crashed = [kill for kill, code in codes.items() if code and kill not in killed]
    changes = [kill for kill in reached if kill.change]
    others = [kill for kill in turns[case.id] if kill not in reached and kill not in crashed]
    late = [kill for kill in others if not kill.moment]
    kills = kill_order.instead(ordered[case.id], changes, len(late))
    kill_order.write_order(bring(session, case), kills)
    return kills


def _signal_of(kill: Kill) -> signal.Signals:
    """Return the signal that ends a process with a kill: the gate's, or that of its own alarm."""
    return signal.SIGALRM if kill.moment else signal.SIGKILL


def _folder(session: ExperimentSession, case: Case, kill: Kill) -> Path:
    """Return the folder in which a save is killed."""
    return Folders(session.scratch).saves / kill_order.folder_name(case, kill)


def _wanted(case: Case) -> int:
    """Return how many saves of a case are to be killed at most."""
    return int(EXPERIMENT.settings(case)["kills"])


def _not_counted(case: Case, kills: Sequence[Kill]) -> str:
    """Return why there was no kill although some are wanted; empty where there was one."""
    return "no change of its save was counted" if _wanted(case) and not kills else ""


def _count_changes(
    session: ExperimentSession, cases: Sequence[Case], crashed: dict[str, str]
) -> str:
    """Have the gate count the changes of one save of each case. Return why that broke, or nothing.

    The recording does not tell them, because the gate also counts calls that fail. A case whose
    process crashed is noted.
    """
    counted = [case for case in cases if _wanted(case)]
    reason = _run_forked(session, counted) if counted else ""
    for case, code in zip(counted, endings.read(Folders(session.scratch)), strict=False):
        if code:
            crashed[case.id] = f"the save whose changes were to be counted {endings.in_words(code)}"
            shutil.rmtree(Folders(session.scratch).saves / case.id, ignore_errors=True)
    return reason


def _order(session: ExperimentSession, case: Case) -> list[Kill]:
    """Choose the kills of a case whose changes were counted, and order them."""
    recorded = bring(session, case)
    counted = kill_order.read_counted(recorded)
    if counted is None:
        return []
    is_seen = not States(recorded, case.id, instants=1).not_seen
    kills = kill_order.chosen(counted, _wanted(case), case.id, is_seen=is_seen)
    kill_order.write_order(recorded, kills)
    return kills


def _compare(session: ExperimentSession, case: Case, kill: Kill) -> bool:
    """Store what a killed save has left, and in what it differs from what its calls predict.

    Return False where no save was killed.
    """
    recorded = bring(session, case)
    folder = _folder(session, case, kill)
    if not folder.exists():
        return False
    real = trees.read(folder)
    lefts.store(recorded, Left("real kill", kill.in_words, lefts.of_kill(kill.name)), real)
    calls = recorded / kill_order.log_name(kill)
    before = read(recorded).before
    differs = _difference(calls, case.id, folder, before, real) if kill.is_predicted else ""
    session.add(
        KilledRecord(
            kind="killed",
            case=case.id,
            process=session.slot,
            rank=0,
            change=kill.change,
            difference=differs,
            moment=kill.moment,
            is_predicted=kill.is_predicted,
            again=kill.again,
        )
    )
    if not differs:
        # Otherwise it stays, because somebody has to look into it.
        calls.unlink(missing_ok=True)
    shutil.rmtree(folder)
    return True


def _difference(file: Path, case_id: str, root: Path, before: Tree, real: Tree) -> str:
    """Return in what the files differ from the nearest that the log allows; empty if in nothing."""
    try:
        predicted = tree_when_killed(log.read(file), case_id, root, before, real)
    except (MissingMarkError, NotSeenError, OSError) as error:
        return f"nothing can be predicted, because {error}"
    return trees.difference(predicted, real) or ""


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


def _gate(session: ExperimentSession) -> list[str]:
    folders = Folders(session.scratch)
    return gate.command(folders.saves, folders.gate_report)
