"""A run on one machine: its cases in order, until nothing is missing.

The unit of work is one process slot of cases that can share a process. In a slot, the stages of
their experiment follow one another, each in a worker process of its own: one saves and leaves a
checkpoint of every case, another, which has not saved, loads them. A worker that breaks costs the
case at which it stood. The others go on in a new worker.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness import experiments
from harness.driver import descendants, launch, preflight, process
from harness.driver.arms import Arm
from harness.driver.calibration import calibrated
from harness.driver.jobs import LEFT_BEHIND, JobRunner
from harness.driver.lanes import run_together
from harness.driver.ledger import Event, Ledger
from harness.driver.units import Unit, group, title
from harness.run.plan import PlannedCase
from harness.run.store import Run
from harness.wire.case import Case, Job, Storage, Task
from harness.wire.driving import ExperimentSession
from harness.wire.experiment import Stage
from harness.wire.folders import LANE, Folders
from harness.wire.records import FindingRecord, IsolatedRecord, Record

# Threads that run jobs side by side. More of them would make a save so slow that it counts as one
# that never ends.
_LANES_AT_MOST = 2


@dataclass(frozen=True)
class Goal:
    """The end of a run that goes on after its plan, until its rows are precise enough.

    `too_wide` returns the identifiers of the cases that need another process. A process that may
    outlast `budget_s` seconds does not begin.
    """

    too_wide: Callable[[], Collection[str]]
    budget_s: float


class Session:
    """One run on one machine."""

    def __init__(
        self,
        run: Run,
        arms: Mapping[str, Arm],
        scratch: Path,
        not_direct: str | None,
        timeout_s: float | None,
        on_event: Callable[[Event], None],
    ) -> None:
        """Take the run to fill, its arms by name ("" where it has one), and a scratch directory.

        The scratch directory is removed at the end. `not_direct` says why the directory takes no
        direct I/O.
        """
        # What a killed driver has left at work would disturb the measurements.
        descendants.end_left_in(scratch)
        run.salvage()
        shutil.rmtree(run.jobs, ignore_errors=True)
        self.ledger = Ledger(run, on_event)
        self._run = run
        self._scratch = scratch
        self._not_direct = not_direct
        self._runner = JobRunner(self.ledger, arms, scratch, timeout_s)
        self._forget_checkpoints_in_memory()

    def _forget_checkpoints_in_memory(self) -> None:
        """Have checkpoints saved anew whose copies in memory went with a killed driver.

        Their files alone are not what such a method restores.
        """
        folders = Folders(self._scratch)
        for item in self._run.plan:
            if item.case.from_memory:
                for rank in range(item.case.world):
                    folders.kept(item.case, rank).unlink(missing_ok=True)

    @property
    def scratch(self) -> Path:
        """The run's scratch directory."""
        return self._scratch

    @property
    def stop(self) -> threading.Event:
        """Set while jobs of several threads must end."""
        return self._runner.stop

    def measure(self, goal: Goal | None = None) -> None:
        """Measure what is missing, then what a goal asks for.

        The scratch directory is gone afterwards, whatever happens.
        """
        begin_s = time.monotonic()
        self._refuse_unsupported()
        units = group(self._run.plan)
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            storage = calibrated(self.ledger, self._runner, self._not_direct)
            slots = max(unit.processes for unit in units)
            longest_s = 0.0
            for slot in range(slots):
                longest_s = max(longest_s, self._measure_units(units, slot, storage))
            if goal is not None:
                self._go_on(goal, begin_s + goal.budget_s, longest_s, storage)
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._runner.clear_shared_memory()
            # On a full disk or at Ctrl-C, a worker's file may hold records that the run lacks.
            self._run.salvage()
            shutil.rmtree(self._run.jobs, ignore_errors=True)

    def _refuse_unsupported(self) -> None:
        """Store a failure for each case that cannot be measured, so that it has its row."""
        for item in self._run.plan:
            if item.unsupported:
                self.ledger.fail(item.case.id, 0, 0, "plan", item.unsupported, "unsupported")

    def _go_on(self, goal: Goal, deadline_s: float, longest_s: float, storage: Storage) -> None:
        """Add process slots for the cases whose intervals are too wide, up to the deadline.

        A slot may take as long as the longest so far, so none begins that might end too late.
        """
        plan = self._run.plan
        for slot in itertools.count(min(item.processes for item in plan)):
            wide = goal.too_wide()
            items = [replace(item, processes=slot + 1) for item in plan if item.case.id in wide]
            if not items or time.monotonic() + longest_s > deadline_s:
                return
            self.ledger.announce(
                f"{len(items)} of {len(plan)} rows are less precise than asked: process {slot + 1}"
            )
            longest_s = max(longest_s, self._measure_units(group(items), slot, storage))

    def _measure_units(self, units: Sequence[Unit], slot: int, storage: Storage) -> float:
        """Measure one process slot of every unit, and return how many seconds that took.

        Every second slot takes the units in reverse order, so that no arm always comes first
        (A B B A).
        """
        begin_s = time.monotonic()
        for unit in units if slot % 2 == 0 else reversed(units):
            self._measure_slot(unit, slot, storage)
            shutil.rmtree(self._scratch, ignore_errors=True)
            killed = self._runner.clear_shared_memory()
            from_memory = [item.case for item in unit.items if item.case.from_memory]
            self._remark_on_killed(killed, from_memory, slot)
        return time.monotonic() - begin_s

    def _measure_slot(self, unit: Unit, slot: int, storage: Storage) -> None:
        """Go through the stages of the experiment, then through what only its driver does."""
        stages = unit.experiment.stages
        progress = self.ledger.progress
        items = []
        for item in unit.items:
            complete = all(progress.done(item, slot, stage) for stage in stages)
            if slot < item.processes and not complete:
                items.append(item)
        for stage in stages:
            if stage.by_driver:
                continue
            missing = [item for item in items if not self._is_done(item, slot, stage)]
            batches = [[item] for item in missing] if stage.one_case_a_process else [missing]
            for number, batch in enumerate(batches, start=1):
                part = f" ({number} of {len(batches)})" if len(batches) > 1 else ""
                self._until_done(_Slot(unit, slot, storage), stage, batch, part)
        name = unit.experiment.name
        if experiments.has_part(name, "driver"):
            after_stages = experiments.part(name, "driver").after_stages
            after_stages(_SlotSession(self, _Slot(unit, slot, storage)))

    def _is_done(self, item: PlannedCase, slot: int, stage: Stage) -> bool:
        """Return whether a stage's results are there, and what it leaves for the next stage.

        A failed case is done.
        """
        if not self.ledger.progress.done(item, slot, stage):
            return False
        if item.case.id in self.ledger.failed or stage.leaves == "nothing":
            return True
        folders = Folders(self._scratch)
        if stage.leaves == "checkpoint":
            return folders.kept(item.case, rank=0).exists()
        return folders.reference(item.case, rank=0).exists()

    def _until_done(self, at: _Slot, stage: Stage, items: list[PlannedCase], part: str) -> None:
        """Run jobs until every case is measured or failed.

        A job that breaks costs the case at which it stood, and the rest goes on in a new one.
        """
        progress = self.ledger.progress
        while items:
            batch = self._may_share(items)
            of = f"process {at.slot + 1} of {at.unit.processes}"
            self.ledger.announce(f"{title(batch)}: {stage.in_words}{part}, {of}")
            tasks = tuple(self._task(item, at.slot, stage) for item in batch)
            alone_before = set(progress.alone)
            ending = self.run_job(at, stage.name, tasks, world=stage.ranks(at.unit.case))
            if ending.complete:
                self._remark_on_killed(ending.killed, [task.case for task in tasks], at.slot)
            if ending.killed and stage.leaves == "checkpoint":
                self._begin_anew_alone([item.case for item in batch], at.slot, stage)
            remaining = [item for item in batch if not self._is_done(item, at.slot, stage)]
            nothing_done = len(remaining) == len(batch)
            if progress.alone != alone_before:
                self._announce_alone(progress.alone - alone_before)
            elif remaining and (nothing_done or not ending.complete):
                self._blame(ending, tasks, remaining, at.slot)
            elif not (ending.complete or stage.ends_killed):
                self.ledger.announce(
                    f"warning: a worker broke after its work was done: {ending.reason}"
                )
            items = [item for item in items if not self._is_done(item, at.slot, stage)]

    def _task(self, item: PlannedCase, slot: int, stage: Stage) -> Task:
        """Return what a job still has to do for a case.

        If all samples are there but what they left for the next stage is lost, it takes one more,
        because a timed save must be among those that are loaded.
        """
        task = self.ledger.progress.task(item, slot, stage)
        checks_timed = stage.samples == "all" and stage.leaves == "checkpoint"
        if checks_timed and item.checked_saves and not task.samples:
            return replace(task, samples=1)
        return task

    def _may_share(self, items: list[PlannedCase]) -> list[PlannedCase]:
        """Return the cases that share the next process: one alone where it disturbs others."""
        sharing = [item for item in items if item.case.id not in self.ledger.progress.alone]
        return sharing or items[:1]

    def _announce_alone(self, cases: Collection[str]) -> None:
        """Tell which methods go on alone."""
        methods = [item.case.method for item in self._run.plan if item.case.id in cases]
        self.ledger.announce(
            f"{', '.join(methods)} must not share a process with the others, and goes on alone"
        )

    def _begin_anew_alone(self, cases: Sequence[Case], slot: int, stage: Stage) -> None:
        """Have the cases that restore from memory saved anew, each alone.

        A process of theirs was ended, because it may as well have been another method's.
        """
        alone = self.ledger.progress.alone
        for case in cases:
            if not case.from_memory or case.id in alone:
                continue
            record = IsolatedRecord(
                kind="isolated",
                case=case.id,
                process=slot,
                rank=0,
                stage=stage.name,
                others=(case.id,),
            )
            self.ledger.add(record)

    def _remark_on_killed(self, killed: Collection[str], cases: Sequence[Case], slot: int) -> None:
        """Remark on every case of a job that processes outlived it and were killed."""
        if not killed:
            return
        names = ", ".join(sorted(set(killed)))
        whose = "its worker" if len(cases) == 1 else "the worker that it shared with other methods"
        for case in cases:
            record = FindingRecord(
                kind="finding",
                case=case.id,
                process=slot,
                rank=0,
                guard=LEFT_BEHIND,
                weight="remark",
                sentence=f"{whose} left processes behind ({names}), which were ended",
            )
            self.ledger.add(record)

    def run_job(
        self,
        at: _Slot,
        role: str,
        tasks: tuple[Task, ...],
        world: int,
        prefix: Sequence[str] = (),
        options: Sequence[str] = (),
        scratch: Path | None = None,
        orphans_s: float | None = None,
    ) -> process.Ending:
        """Run one job of a process slot, with options of the launcher, and return how it ended.

        It has a scratch directory of its own, or that of the run. Processes that outlive their
        parent have `orphans_s` seconds to end by themselves, else half a second.
        """
        case = at.unit.case
        job = Job(
            name=self._runner.name(role, at.slot, case.arm),
            role=role,
            process=at.slot,
            scratch=str(scratch or self._scratch),
            world=world,
            tasks=tasks,
            storage=at.storage,
            hash_seed=at.unit.experiment.hash_seed(at.slot),
        )
        return self._runner.run(job, case, prefix, options, orphans_s)

    def _blame(
        self,
        ending: process.Ending,
        tasks: Sequence[Task],
        remaining: Sequence[PlannedCase],
        slot: int,
    ) -> None:
        """Fail the case at which a job broke, or every unfinished one where it stood at none."""
        blamed = {item.case.id for item in remaining}
        # A worker that writes garbage may name a task that there is not.
        if 0 <= ending.at.task < len(tasks):
            blamed &= {tasks[ending.at.task].case.id}
        reason = ending.reason or "the worker left the case out"
        for case in sorted(blamed - self.ledger.failed):
            self.ledger.fail(case, slot, ending.at.rank, ending.at.phase, reason)


@dataclass(frozen=True)
class _Slot:
    """One process slot of a unit, and how the scratch directory takes I/O."""

    unit: Unit
    slot: int
    storage: Storage


class _SlotSession:
    """The session as an experiment's `driver.py` sees it; see `ExperimentSession`."""

    def __init__(
        self,
        session: Session,
        at: _Slot,
        items: Sequence[PlannedCase] | None = None,
        scratch: Path | None = None,
    ) -> None:
        """Take the cases that this session is about, or all, and a scratch directory of its own."""
        self._session = session
        self._ledger = session.ledger
        self._at = at
        self._items = at.unit.items if items is None else items
        self._scratch = scratch or session.scratch
        self._ended_ns = 0
        self._killed: tuple[str, ...] = ()

    @property
    def slot(self) -> int:
        return self._at.slot

    @property
    def cases(self) -> list[Case]:
        return [item.case for item in self._items if item.case.id not in self._ledger.failed]

    @property
    def traced_cases(self) -> list[Case]:
        wanted = {item.case.id for item in self._items if item.traced}
        return [case for case in self.cases if case.id in wanted]

    def sharing(self, cases: Sequence[Case]) -> list[list[Case]]:
        alone = self._ledger.progress.alone
        together = [case for case in cases if case.id not in alone]
        apart = [[case] for case in cases if case.id in alone]
        return [together, *apart] if together else apart

    @property
    def scratch(self) -> Path:
        return self._scratch

    @property
    def jobs(self) -> Path:
        return self._ledger.run.jobs

    def files(self, case: Case) -> Path:
        return self._ledger.run.files(case)

    def announce(self, text: str) -> None:
        self._ledger.announce(f"{title(self._items)}: {text}")

    def out_of_sight(self) -> str | None:
        return launch.out_of_sight(self._at.unit.case.nodes)

    def volatile(self) -> str | None:
        return preflight.volatile(self._session.scratch)

    def run_job(
        self,
        role: str,
        cases: Sequence[Case],
        prefix: Sequence[str] = (),
        ranks: int | None = None,
        options: Sequence[str] = (),
        orphans_s: float | None = None,
    ) -> str:
        tasks = tuple(Task(case, samples=0, warmups=0, repeats=0) for case in cases)
        world = ranks or self._at.unit.case.world
        ending = self._session.run_job(
            self._at, role, tasks, world, prefix, options, self._scratch, orphans_s
        )
        self._ended_ns = ending.ended_ns
        self._killed = ending.killed
        return ending.reason

    @property
    def killed(self) -> tuple[str, ...]:
        return self._killed

    @property
    def ended_ns(self) -> int:
        return self._ended_ns

    def side_by_side(self, work: Callable[[ExperimentSession], None]) -> None:
        threads = min(_LANES_AT_MOST, len(os.sched_getaffinity(0)), len(self._items))
        case = self._at.unit.case
        if threads < 2 or case.world > 1 or case.device != "cpu":
            work(self)
            return
        folders = [self._scratch / LANE.format(number) for number in range(threads)]
        lanes = []
        for number, folder in enumerate(folders):
            items = self._items[number::threads]
            lanes.append(partial(work, _SlotSession(self._session, self._at, items, folder)))
        with _empty_at_both_ends(folders), descendants.adopted() as others:
            try:
                run_together(lanes, self._session.stop)
            finally:
                descendants.end_strays(others)

    def has(self, kind: str, case: Case) -> bool:
        return self._ledger.progress.has(kind, case.id)

    def add(self, record: Record) -> None:
        self._ledger.add(record)

    def fail(self, case: Case, phase: str, reason: str) -> None:
        self._ledger.fail(case.id, self.slot, 0, phase, reason)

    def refuse(self, case: Case, phase: str, reason: str) -> None:
        self._ledger.fail(case.id, self.slot, 0, phase, reason, "unsupported")


@contextlib.contextmanager
def _empty_at_both_ends(folders: Sequence[Path]) -> Iterator[None]:
    """Remove folders before the block, because a killed driver may have left them, and after."""
    try:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        yield
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
