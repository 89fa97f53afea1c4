"""Kills saves for real, and compares what is left with what the log of their calls predicts."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from harness.durability import log, trees
from harness.durability.crashes import NotSeenError, tree_when_killed
from harness.durability.trees import Tree
from harness.durability.window import MissingMarkError
from harness.experiments.faults import EXPERIMENT, kill_order
from harness.experiments.faults import left as lefts
from harness.experiments.faults.jobs import bring, gate_command, missing, unfinished
from harness.experiments.faults.kill_order import Kill
from harness.experiments.faults.left import Left
from harness.experiments.faults.recorded_save import read, report
from harness.experiments.faults.records import KilledRecord, KillsRecord
from harness.experiments.faults.states import States
from harness.wire import endings
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders

_TURNS = 3
"""Kills that come too late are ordered again before other changes, at most twice."""


def kill_saves(session: ExperimentSession, no_gate: str) -> None:
    """Kill saves of every case. `no_gate` says why that is impossible here."""
    for case in missing(session, "kills"):
        bring(session, case)
    cases = unfinished(session, "kills", KillsRecord)
    if not cases:
        return
    session.announce("real kills")
    every = [CaseKills(session, case) for case in cases]
    reason = no_gate or _count_changes(session, every)
    every = _not_failed(session, every)
    for kills in every:
        kills.order()
    for _ in range(_TURNS):
        if any(kills.turn for kills in every):
            reason = _take_turn(session, every)
            every = _not_failed(session, every)
    for kills in every:
        kills.finish(reason)


def _not_failed(session: ExperimentSession, every: Sequence[CaseKills]) -> list[CaseKills]:
    """Return the kills of the cases that have not failed in a job."""
    return [kills for kills in every if kills.case in session.cases]


def _count_changes(session: ExperimentSession, every: Sequence[CaseKills]) -> str:
    """Have the gate count the changes of one save of each case. Return why that broke, or nothing.

    The recording does not tell them, because the gate also counts calls that fail.
    """
    counted = [kills for kills in every if kills.wanted]
    if not counted:
        return ""
    reason, codes = _run_forked(session, [kills.case for kills in counted])
    # A job that broke has fewer codes than tasks.
    for kills, code in zip(counted, codes, strict=False):
        kills.end_count(code)
    return reason


def _take_turn(session: ExperimentSession, every: Sequence[CaseKills]) -> str:
    """Give each kill of this turn a process. Return why that broke, or nothing."""
    tasks = list(itertools.chain.from_iterable([kills.case] * len(kills.turn) for kills in every))
    reason, all_codes = _run_forked(session, tasks)
    codes = iter(all_codes)
    for kills in every:
        kills.end_turn(list(itertools.islice(codes, len(kills.turn))))
    return reason


def _run_forked(session: ExperimentSession, tasks: Sequence[Case]) -> tuple[str, list[int]]:
    """Do each task in a process of its own.

    Return why that broke, or nothing, and the exit codes of the processes.
    """
    folders = Folders(session.scratch)
    endings.forget(folders)
    reason = session.run_job("kill", tasks, gate_command(session))
    return reason, endings.read(folders)


class CaseKills:
    """The kills of one case. Each is of a save in a process of its own.

    `wanted` is how many there are to be at most. `turn` has those that the next job does.
    """

    def __init__(self, session: ExperimentSession, case: Case) -> None:
        self.case = case
        self.wanted = int(EXPERIMENT.settings(case)["kills"])
        self.turn: list[Kill] = []
        self._session = session
        self._recorded = bring(session, case)
        self._saves = Folders(session.scratch).saves
        self._chosen_count = 0
        self._ordered: list[Kill] = []  # of all turns
        self._crash = ""

    def end_count(self, code: int) -> None:
        """Note how the process ended that was to count the changes of an undisturbed save."""
        folder = self._saves / self.case.id
        # A process that comes to its end takes its folder away.
        if code or folder.exists():
            self._crash = f"the save whose changes were to be counted {endings.in_words(code)}"
            shutil.rmtree(folder, ignore_errors=True)

    def order(self) -> None:
        """Choose the kills of the first turn, where the changes of a save were counted."""
        counted = kill_order.read_counted(self._recorded)
        if counted is None:
            return
        is_seen = not States(self._recorded, self.case.id, instants=1).not_seen
        kills = kill_order.chosen(counted, self.wanted, self.case.id, is_seen=is_seen)
        self._chosen_count = len(kills)
        self._begin_turn(kills)

    def end_turn(self, codes: Sequence[int]) -> None:
        """Store what the kills of this turn have left, and order others for those that came late.

        A save may make fewer changes than the one that was counted. What crashed is not ordered
        again. `codes` are the exit codes of the turn's processes, and fewer where the job broke.
        """
        reached, crashed = [], []
        for kill, code in zip(self.turn, codes, strict=False):
            is_left = self._folder(kill).exists()
            if code == -_signal_of(kill):
                if is_left:
                    self._compare(kill)
                    reached.append(kill)
            # Else its save came to its end before the kill, and the process took its folder away.
            elif code or is_left:
                self._take_crash(kill, code)
                crashed.append(kill)
        late = [kill for kill in self.turn if kill not in reached and kill not in crashed]
        of_changes = [kill for kill in late if not kill.moment]
        changes = [kill for kill in reached if kill.change]
        self._begin_turn(kill_order.instead(self._ordered, changes, len(of_changes)))

    def finish(self, reason: str) -> None:
        """Store that this is done. `reason` says why the last job broke, or is empty."""
        not_counted = "no change of its save was counted"
        is_not_counted = bool(self.wanted) and not self._ordered
        record = KillsRecord(
            kind="kills",
            case=self.case.id,
            process=self._session.slot,
            rank=0,
            kills=self._chosen_count,
            not_done=reason or self._crash or (not_counted if is_not_counted else ""),
        )
        report(self._recorded, record)
        unfinished(self._session, "kills", KillsRecord)

    def _begin_turn(self, kills: list[Kill]) -> None:
        self.turn = kills
        self._ordered += kills
        kill_order.write_order(self._recorded, kills)

    def _folder(self, kill: Kill) -> Path:
        """Return the folder in which a save is killed."""
        return self._saves / kill_order.folder_name(self.case, kill)

    def _log(self, kill: Kill) -> Path:
        """Return the log of the calls of a save that is killed."""
        return self._recorded / kill_order.log_name(kill)

    def _take_crash(self, kill: Kill, code: int) -> None:
        """Note the first process that ended in another way than by its kill.

        Such a process may leave anything, which is no kill's.
        """
        self._crash = self._crash or f"one that was to be {kill.in_words} {endings.in_words(code)}"
        self._log(kill).unlink(missing_ok=True)
        if self._folder(kill).exists():
            shutil.rmtree(self._folder(kill))

    def _compare(self, kill: Kill) -> None:
        """Store what a killed save has left, and in what it differs from what its calls predict."""
        folder = self._folder(kill)
        real = trees.read(folder)
        left = Left("real kill", kill.in_words, lefts.of_kill(kill.name))
        lefts.store(self._recorded, left, real)
        difference = self._difference(kill, real) if kill.is_predicted else ""
        self._session.add(
            KilledRecord(
                kind="killed",
                case=self.case.id,
                process=self._session.slot,
                rank=0,
                change=kill.change,
                difference=difference,
                moment=kill.moment,
                is_predicted=kill.is_predicted,
                again=kill.again,
            )
        )
        if not difference:
            # Otherwise it stays, because somebody has to look into it.
            self._log(kill).unlink(missing_ok=True)
        shutil.rmtree(folder)

    def _difference(self, kill: Kill, real: Tree) -> str:
        """Return in what the files differ from the nearest that the log allows; empty if not."""
        before = read(self._recorded).before
        try:
            calls = log.read(self._log(kill))
            predicted = tree_when_killed(calls, self.case.id, self._folder(kill), before, real)
        except (MissingMarkError, NotSeenError, OSError) as error:
            return f"nothing can be predicted, because {error}"
        return trees.difference(predicted, real) or ""


def _signal_of(kill: Kill) -> signal.Signals:
    """Return the signal that ends a process with a kill: the gate's, or that of its own alarm."""
    return signal.SIGALRM if kill.moment else signal.SIGKILL
