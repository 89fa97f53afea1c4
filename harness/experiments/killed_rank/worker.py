"""Saves in which one of several ranks is killed, and loads of what it leaves. Never timed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from harness.experiments.faults.alarm import killed_after
from harness.experiments.faults.outcome import Outcome
from harness.experiments.faults.recorded_save import AT, BEGIN, first_number
from harness.experiments.faults.records import WORST_FIRST
from harness.experiments.faults.states import NEWER, OLDER
from harness.experiments.faults.trial import Trial
from harness.experiments.killed_rank.orders import Notes
from harness.experiments.killed_rank.records import (
    UNDISTURBED,
    RankLeftRecord,
    RanksResumedRecord,
)
from harness.experiments.killed_rank.struck_save import StruckSave
from harness.wire.case import Task
from harness.worker import storage, verify
from harness.worker.bench import Bench, Entries

_LOAD_AT_MOST_S = 60.0
_SLOWEST_BYTES_PER_S = 20e6  # so a large state may take longer


class DoesNotComeBack(Exception):
    """A save that nobody disturbed does not come back."""


def run_strikes(bench: Bench, entries: Entries) -> None:
    """Save by the method of the one task, while a rank is killed."""
    bench.attempt(entries, lambda task: StruckSave(bench, task.case).run())


def run_resumes(bench: Bench, entries: Entries) -> None:
    """Resume from every directory that a killed rank has left."""

    def resume(task: Task) -> None:
        resumes = _Resumes(bench, task)
        for number in resumes.numbers:
            if not resumes.take(number):
                # Its collective operations may not fit those of the others any more.
                bench.world.fail()
        if bench.world.rank == 0:
            bench.output.write(
                RanksResumedRecord(kind="ranks-resumed", **bench.identity(task.case))
            )

    bench.attempt(entries, resume)


class _Resumes:
    """The directories of one case, and the state that its ranks load them into."""

    def __init__(self, bench: Bench, task: Task) -> None:
        self._bench = bench
        self._case = task.case
        self._notes = Notes(bench.folders, task.case)
        numbers = self._notes.saved(bench.world.size)
        begin = first_number(self._notes.folder)
        self.numbers = [number for number in numbers if number >= begin]
        self._expected = {number: self._digests(number) for number in self.numbers}
        saved = [digests for both in self._expected.values() for digests in both.values()]
        whole = [self._older_files(number) for number in self.numbers]
        self._trial = Trial(bench, task.case, whole, saved)

    def take(self, number: int) -> bool:
        """Resume from one directory. Return whether all ranks came to an end of the same kind."""
        bench = self._bench
        at = self._notes.folder / AT
        folder = self._notes.checkpoints(number)
        if bench.world.rank == 0:
            # A load may take its process with it, and then this file says what that is.
            ended = self._trial.refused(folder, "the load never ended, or ended its process")
            at.write_text(json.dumps({"number": number, **asdict(ended)}))
        # The load of another rank may remove files of a killed one.
        limit_s = _load_limit_s(folder)
        bench.world.barrier()
        # A load that waits for another rank for ever must not hold up the others.
        with killed_after(limit_s):
            outcome = self._trial.resume(folder, self._expected[number])
            outcomes = bench.world.all_gathered(outcome)
        all_together = together(outcomes)
        if number == UNDISTURBED and all_together.got != NEWER:
            raise DoesNotComeBack(
                f"a save in which nobody is killed does not come back: {all_together.verdict}, "
                f"{all_together.reason or all_together.got}"
            )
        if bench.world.rank == 0:
            self._write(number, all_together)
            (self._notes.folder / BEGIN).write_text(str(number + 1))
            at.unlink()
        bench.world.barrier()
        return len({outcome.verdict for outcome in outcomes}) == 1

    def _write(self, number: int, outcome: Outcome) -> None:
        if number == UNDISTURBED:
            return
        self._bench.output.write(
            RankLeftRecord(
                kind="rank-left",
                **self._bench.identity(self._case),
                number=number,
                verdict=outcome.verdict,
                got=outcome.got,
                reason=outcome.reason,
            )
        )

    def _digests(self, number: int) -> dict[str, verify.Digests]:
        file = self._notes.digests(number, self._bench.world.rank)
        stored = json.loads(file.read_text())
        return {name: verify.digests_from_json(stored[name]) for name in (OLDER, NEWER)}

    def _older_files(self, number: int) -> frozenset[str]:
        """Return the hashes of the older checkpoint's files but those that saves replace.

        A store that overwrites its checkpoint replaces all of them. Then all count.
        """
        replaced = set(json.loads(self._notes.replaced.read_text()))
        files = json.loads(self._notes.older_files(number).read_text())
        kept = [hashed for name, hashed in files.items() if name not in replaced]
        return frozenset(kept or files.values())


def _load_limit_s(folder: Path) -> float:
    """Return the seconds after which a load of the checkpoints in a folder hangs."""
    size_bytes = sum(file.stat().st_size for file in storage.files_under(folder))
    return _LOAD_AT_MOST_S + size_bytes / _SLOWEST_BYTES_PER_S


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Return what ranks get all together, given what each of them gets.

    The worst verdict counts. Ranks that get different checkpoints have a state that nobody saved.
    """
    worst = min(outcomes, key=lambda outcome: WORST_FIRST.index(outcome.verdict))
    got = [outcome.got for outcome in outcomes]
    if worst.verdict == "safe" and len(set(got)) > 1:
        parts = [f"rank {rank} gets {name}" for rank, name in enumerate(got)]
        return Outcome("silent", "", " and ".join(parts))
    if worst.verdict == "safe":
        return worst
    rank = outcomes.index(worst)
    return replace(worst, reason=f"rank {rank}: {worst.reason}")


STAGES = {"strike": run_strikes, "resume": run_resumes}
