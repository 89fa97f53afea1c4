"""Runs the jobs of the experiment: one undisturbed save, a job for each kill, and the loads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from harness.durability import gate
from harness.experiments.faults.jobs import stood_at
from harness.experiments.faults.recorded_save import first_number
from harness.experiments.killed_rank import EXPERIMENT, archive, fates
from harness.experiments.killed_rank.orders import Notes, Order, orders, undisturbed
from harness.experiments.killed_rank.records import (
    UNDISTURBED,
    RankLeftRecord,
    RanksStruckRecord,
)
from harness.wire import strikes
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.folders import Folders

# Without it, mpirun ends the other ranks as soon as one dies. Fault tolerance (--with-ft ulfm) must
# stay off, because it lets calls of MPI raise an error that an ordinary job never gets.
_OTHERS_GO_ON = ("--enable-recovery",)
_FIRST_LIMIT_S = 120.0
_LIMIT_S = 15.0
_LIMIT_SAVES = 5  # a limit grows by so many undisturbed saves, because a large state takes long


def after_stages(session: ExperimentSession) -> None:
    """Kill ranks of every case that has not been struck yet, and load what they leave."""
    if session.slot > 0:
        return
    for case in session.cases:
        if session.has("ranks-resumed", case):
            continue
        obstacle = _obstacle(session, case)
        if obstacle:
            session.refuse(case, "plan", obstacle)
            continue
        _CaseOfRanks(session, case).measure()


def _obstacle(session: ExperimentSession, case: Case) -> str:
    """Return why no rank of a case can be killed; empty where one can."""
    if case.world != 2:
        return f"one of two ranks is killed, and here are {case.world}; ask for --world 2"
    return session.out_of_sight() or gate.available() or ""


class _CaseOfRanks:
    """The kills of one case."""

    def __init__(self, session: ExperimentSession, case: Case) -> None:
        self._session = session
        self._case = case
        self._folders = Folders(session.scratch)
        self._notes = Notes(self._folders, case)
        # An interrupted case begins anew, because its directories are gone.
        self._notes.remove()

    def measure(self) -> None:
        """Save undisturbed, kill a rank in every other save, and load all that is left."""
        try:
            self._measure()
        finally:
            # The next case needs their room.
            self._notes.remove()

    def _measure(self) -> None:
        save_ns = self._undisturbed()
        if save_ns is None:
            return
        counted = strikes.read_report(self._folders.gate_report)
        changes = counted.seen - counted.writes
        limit_s = _LIMIT_S + _LIMIT_SAVES * save_ns / 1e9
        at_most = int(EXPERIMENT.settings(self._case)["kills"])
        ordered = orders(changes, counted.writes, at_most, limit_s)
        killed = 0
        for number, order in enumerate(ordered, start=1):
            killed += self._kill(order, f"kill {number} of {len(ordered)}")
            if self._has_failed():
                return
        self._session.add(
            RanksStruckRecord(
                kind="ranks-struck",
                case=self._case.id,
                process=self._session.slot,
                rank=0,
                changes=changes,
                writes=counted.writes,
                save_ns=save_ns,
                kills=killed,
                not_reached=len(ordered) - killed,
            )
        )
        self._resume()

    def _undisturbed(self) -> int | None:
        """Return how many nanoseconds a save takes in which nobody is killed; None where it fails.

        Its calls are counted.
        """
        reason = self._save(undisturbed(_FIRST_LIMIT_S), "a save in which nobody is killed")
        if self._has_failed():
            return None
        saves = fates.read(self._notes, UNDISTURBED, self._case.world)
        unfinished = [save.said for save in saves if save.fate != "finished"]
        if unfinished or len(saves) < self._case.world:
            said = [*filter(None, unfinished), reason, "the worker left the case out"]
            self._session.fail(self._case, "save", next(filter(None, said)))
            return None
        return max(save.ended_ns - save.began_ns for save in saves if save.ended_ns is not None)

    def _kill(self, order: Order, in_words: str) -> bool:
        """Kill a rank, and store the fate of the other one. Return False where nobody was hit."""
        reason = self._save(order, in_words)
        report = strikes.read_report(self._folders.gate_report)
        record = fates.of_kill(self._notes, order, report, self._session.slot)
        if record is None:
            self._require_finished(order, in_words, report, reason)
            shutil.rmtree(self._notes.checkpoints(order.number), ignore_errors=True)
            return False
        self._session.add(record)
        files = self._session.files(self._case)
        archive.keep(files, order.number, self._notes.checkpoints(order.number))
        return True

    def _require_finished(
        self, order: Order, in_words: str, report: strikes.Report, reason: str
    ) -> None:
        """Fail the case unless the save of every rank came to its end, before the kill."""
        saves = fates.read(self._notes, order.number, self._case.world)
        finished = [save for save in saves if save.fate == "finished"]
        if report.struck or len(finished) < self._case.world:
            words = reason or "it struck a process that is no rank's"
            self._session.fail(self._case, "save", f"{in_words} hit no rank: {words}")

    def _save(self, order: Order, in_words: str) -> str:
        self._session.announce(f"{self._case.method}: {in_words}")
        self._notes.write_order(order)
        around = gate.command(self._folders.saves, self._folders.gate_report)
        return self._session.run_job("strike", [self._case], around, options=_OTHERS_GO_ON)

    def _resume(self) -> None:
        """Have new ranks load every directory. A load that ends or hangs its process costs one."""
        self._session.announce(f"{self._case.method}: what killed ranks leave")
        while not self._session.has("ranks-resumed", self._case):
            before = first_number(self._notes.folder)
            reason = self._session.run_job("resume", [self._case])
            if self._has_failed() or self._session.has("ranks-resumed", self._case):
                return
            at = stood_at(self._notes.folder)
            if at is not None and at["number"] == UNDISTURBED:
                words = "a save in which nobody is killed does not come back: its load never ended"
                self._session.fail(self._case, "load", f"{words}, or ended its process ({reason})")
                return
            if at is not None:
                self._blame(at, reason)
            elif first_number(self._notes.folder) == before:
                self._session.fail(self._case, "load", reason or "the worker left the case out")

    def _blame(self, at: Mapping[str, Any], reason: str) -> None:
        """Store that the load of a directory never ended, or ended its process."""
        self._session.add(
            RankLeftRecord(
                kind="rank-left",
                case=self._case.id,
                process=self._session.slot,
                rank=0,
                number=at["number"],
                verdict=at["verdict"],
                got="",
                reason=f"{at['reason']} ({reason})",
            )
        )

    def _has_failed(self) -> bool:
        return self._case not in self._session.cases
