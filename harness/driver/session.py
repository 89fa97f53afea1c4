"""A run: its cases in order, process by process, until nothing is missing.

The unit of work is one process slot of a group of cases that can share a process. In each, the
stages of their experiment follow one another, a worker process each: one saves and leaves a
checkpoint of every case, another, which has not saved, loads them. A worker that breaks costs its
present case, and the rest is started anew.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import workloads
from harness.driver import calibrations, launch, process
from harness.driver.arms import Arm
from harness.driver.launch import Launch
from harness.driver.progress import Progress
from harness.driver.shared_memory import SharedMemory
from harness.durability import syscalls
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase
from harness.run.reading import InvalidLine
from harness.run.store import Run
from harness.wire.case import Case, Job, JobRole, Storage, Task, job_to_json
from harness.wire.experiment import EXPERIMENTS, Experiment, Stage
from harness.wire.folders import Folders
from harness.wire.records import CalibrationRecord, FailureRecord, Record, SyscallsRecord

CALIBRATION_BYTES_AT_MOST = 64 << 20  # what a sweep ever has in flight; with 256 MiB it took 21 s
_CALIBRATION_BYTES_AT_LEAST = 16 << 20
_KEPT_BYTES_AT_MOST = 8 << 30
# the references of a resumed run, the checkpoints of a block
_STATES_AT_WORK = {"resume": 12, "rerun": 12, "train": 6}
_SLOWEST_METHOD_BYTES_PER_S = 5e6
_SLOWEST_START_S = 120.0
_SLOWEST_DEVICE_BYTES_PER_S = 20e6
_SWEEP_TRANSFERS = 126  # of all settings and rounds, writes and reads
_IN_WORDS: dict[JobRole, str] = {
    "save": "saves",
    "load": "loads",
    "inspect": "files",
    "repeat": "the same files again",
    "train": "ten steps",
    "steps": "training with checkpoints",
    "straight": "training straight on",
    "interrupt": "training up to a kill",
    "resume": "training on from the checkpoint",
    "again": "training once more",
    "part": "saves",
    "reload": "loads by another number of ranks",
}


@dataclass(frozen=True)
class Unit:
    """Cases that share one worker process: one experiment, framework, device, world and launcher."""

    items: tuple[PlannedCase, ...]

    @property
    def case(self) -> Case:
        """Any of the cases, for what they share."""
        return self.items[0].case

    @property
    def experiment(self) -> Experiment:
        """What is done with the cases."""
        return EXPERIMENTS[self.case.experiment]

    @property
    def processes(self) -> int:
        """How many process slots the unit's cases want."""
        return max(item.processes for item in self.items)

    @property
    def title(self) -> str:
        """The unit in a few words."""
        methods = sorted({item.case.method for item in self.items})
        named = (
            methods[0] if len(methods) == 1 else f"{len(methods)} methods"
        ) + f" of arm {self.case.arm}" * bool(self.case.arm)
        world = "" if self.case.world == 1 else f" on {self.case.world} ranks"
        return (
            f"{self.case.framework} {named}{world}"
            if self.experiment.methods
            else f"{self.case.framework}{world}"
        )


@dataclass(frozen=True)
class Goal:
    """How long a run goes on after its plan: until no case is too imprecise, or until `budget_s` seconds are over.

    `too_wide` looks at what the run holds and returns the identifiers of the cases that need
    another process.
    """

    too_wide: Callable[[], Collection[str]]
    budget_s: float


@dataclass(frozen=True)
class Event:
    """Something for the person who watches; without a text, only that there is something new."""

    text: str = ""


class Session:
    """One run on one machine."""

    def __init__(
        self,
        run: Run,
        arms: Mapping[str, Arm],
        scratch: Path,
        packages: dict[str, tuple[str, ...]],
        not_direct: str | None,
        timeout_s: float | None,
        on_event: Callable[[Event], None],
    ) -> None:
        """Take the run to fill, its arms by name ("" where it has one), and a scratch directory that is removed at the end."""
        self._mpi = launch.open_mpi(Path(run.settings.mpirun)) if run.settings.mpirun else None
        self._run = run
        self._arms = dict(arms)
        self._scratch = scratch
        self._packages = packages
        self._not_direct = not_direct
        self._timeout_s = timeout_s
        self._on_event = on_event
        self._shared_memory = SharedMemory(run.folder)
        run.salvage()
        shutil.rmtree(run.jobs, ignore_errors=True)
        self.progress = Progress(run.records)

    def measure(self, goal: Goal | None = None) -> None:
        """Measure what is missing, then what a goal asks for.

        The scratch directory is gone afterwards, whatever happens.
        """
        begin_s = time.monotonic()
        self._refuse_unsupported()
        units = group(self._run.plan)
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            storage = self._calibrated(units)
            slots_s = [
                self._measure_slots(units, slot, storage)
                for slot in range(max(unit.processes for unit in units))
            ]
            if goal is not None:
                self._go_on(goal, begin_s + goal.budget_s, max(slots_s), storage)
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
            shutil.rmtree(self._run.jobs, ignore_errors=True)
            self._shared_memory.clear()

    def _go_on(self, goal: Goal, deadline_s: float, longest_s: float, storage: Storage) -> None:
        """Add process slots for the cases whose intervals are too wide; none begins that may outlast the deadline.

        One may take as long as the longest so far, which is known of those that this process has
        measured.
        """
        for slot in itertools.count(min(item.processes for item in self._run.plan)):
            wide = goal.too_wide()
            items = [
                replace(item, processes=slot + 1) for item in self._run.plan if item.case.id in wide
            ]
            if not items or time.monotonic() + longest_s > deadline_s:
                return
            self._on_event(
                Event(
                    f"{len(items)} of {len(self._run.plan)} rows are less precise than asked: process {slot + 1}"
                )
            )
            longest_s = max(longest_s, self._measure_slots(group(items), slot, storage))

    def _measure_slots(self, units: Sequence[Unit], slot: int, storage: Storage) -> float:
        """Take every unit's process of one number: forth, and the next time back, so that no arm is always the first (A B B A).

        Returns how many seconds that took.
        """
        begin_s = time.monotonic()
        for unit in units if slot % 2 == 0 else reversed(units):
            self._measure_slot(unit, slot, storage)
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._shared_memory.clear()
        return time.monotonic() - begin_s

    def _refuse_unsupported(self) -> None:
        """Give the cases that cannot be measured their rows."""
        for item in self._run.plan:
            if item.unsupported and item.case.id not in self.progress.failed:
                self._add(
                    FailureRecord(
                        "failure", item.case.id, 0, 0, "unsupported", "plan", item.unsupported
                    )
                )

    def _measure_slot(self, unit: Unit, slot: int, storage: Storage) -> None:
        """Go through the stages of the experiment, then (once) watch the system calls."""
        stages = unit.experiment.stages
        items = [
            item
            for item in unit.items
            if slot < item.processes
            and not all(self.progress.done(item, slot, stage.role) for stage in stages)
        ]
        for stage in stages:
            missing = [item for item in items if not self._done(item, slot, stage)]
            for together in [[item] for item in missing] if stage.alone else [missing]:
                self._until_done(stage, unit, slot, storage, together)
        if slot == 0 and unit.experiment.traced:
            self._trace(unit, storage)

    def _done(self, item: PlannedCase, slot: int, stage: Stage) -> bool:
        """Whether a stage's results are there, and the checkpoint that the next stage needs of it. A failed case is done."""
        if not self.progress.done(item, slot, stage.role):
            return False
        return (
            item.case.id in self.progress.failed
            or not stage.keeps
            or self._left(stage, item.case).exists()
        )

    def _left(self, stage: Stage, case: Case) -> Path:
        """A file that is there when a stage has left what it keeps."""
        folders = Folders(self._scratch)
        return (
            folders.digests(case, rank=0)
            if stage.keeps == "checkpoint"
            else folders.reference(case, rank=0)
        )

    def _until_done(
        self, stage: Stage, unit: Unit, slot: int, storage: Storage, items: list[PlannedCase]
    ) -> None:
        """Run jobs until every case is measured or failed: one that breaks costs its present case, and the rest goes on."""
        while items:
            tasks = tuple(self.progress.task(item, slot, stage.role) for item in items)
            self._on_event(
                Event(
                    f"{unit.title}: {_IN_WORDS[stage.role]}, process {slot + 1} of {unit.processes}"
                )
            )
            name, hash_seed = (
                self._name(stage.role, slot, unit.case.arm),
                unit.experiment.hash_seed(slot),
            )
            world = stage.world(unit.case)
            job = Job(
                name,
                stage.role,
                slot,
                str(self._scratch),
                world,
                tasks,
                storage=storage,
                hash_seed=hash_seed,
            )
            ending = self._run_job(job, unit.case)
            remaining = [item for item in items if not self._done(item, slot, stage)]
            if remaining and (len(remaining) == len(items) or not ending.complete):
                self._blame(ending, tasks, remaining, slot)
            elif not (ending.complete or stage.killed):
                self._on_event(
                    Event(f"warning: a worker broke after its work was done: {ending.reason}")
                )
            items = [item for item in remaining if item.case.id not in self.progress.failed]

    def _blame(
        self,
        ending: process.Ending,
        tasks: Sequence[Task],
        remaining: Sequence[PlannedCase],
        slot: int,
    ) -> None:
        """Make failures of a job's end: of the case it stood at, or of every unfinished one where it stood at none."""
        unfinished = {item.case.id for item in remaining}
        blamed = unfinished if ending.at.task < 0 else {tasks[ending.at.task].case.id}
        for case in sorted(blamed & unfinished - self.progress.failed):
            self._fail(
                case,
                slot,
                ending.at.rank,
                ending.at.phase,
                ending.reason or "the worker left the case out",
            )

    def _calibrated(self, units: Sequence[Unit]) -> Storage:
        """Return how the scratch directory takes I/O, as the run has it, or else an earlier run beside it, or else a sweep."""
        if (found := self._calibration()) is None:
            size_bytes = _calibration_bytes(self._run.plan)
            earlier = (
                None if self._not_direct else calibrations.of_an_earlier_run(self._run, size_bytes)
            )
            if earlier is not None:
                name, found = earlier
                self._run.append(found)
                self._on_event(
                    Event(f"ceilings: by the requests that run {name} found the fastest here")
                )
            else:
                found = self._swept(units, size_bytes)
        return _storage_of(found)

    def _calibration(self) -> CalibrationRecord | None:
        return next(
            (record for record in self._run.records if isinstance(record, CalibrationRecord)), None
        )

    def _swept(self, units: Sequence[Unit], size_bytes: int) -> CalibrationRecord:
        """Have a worker find out by which requests the scratch directory is written and read fastest."""
        self._on_event(Event("calibrating: how fast this directory takes direct writes and reads"))
        job = Job(
            name=self._name("calibrate", 0),
            role="calibrate",
            process=0,
            scratch=str(self._scratch),
            calibration_bytes=size_bytes,
            not_direct=self._not_direct,
        )
        ending = self._run_job(job, units[0].case)
        found = self._calibration()
        if found is None:
            raise UsageError(f"the scratch directory could not be calibrated: {ending.reason}")
        return found

    def _trace(self, unit: Unit, storage: Storage) -> None:
        """Watch one save of each case at the system calls, untimed, where strace is to be had."""
        known = self.progress.failed | self.progress.traced
        cases = [item.case for item in unit.items if item.traced and item.case.id not in known]
        if not cases:
            return
        self._on_event(Event(f"{unit.title}: system calls"))
        reason = launch.out_of_sight(unit.case.nodes) or syscalls.available()
        log = self._run.jobs / "strace.log"
        if reason is None:
            tasks = tuple(Task(case, samples=0, warmups=0, repeats=0) for case in cases)
            job = Job(
                self._name("trace", 0, unit.case.arm),
                "trace",
                0,
                str(self._scratch),
                unit.case.world,
                tasks,
                storage=storage,
            )
            reason = self._run_job(job, unit.case, syscalls.command(log)).reason
        calls = None if reason else syscalls.Log(log)
        for case in cases:
            if case.id not in self.progress.failed:
                found = (
                    calls.analyse(case.id, self._scratch / "trial")
                    if calls
                    else syscalls.unknown(str(reason))
                )
                self._add(SyscallsRecord(kind="syscalls", case=case.id, **vars(found)))

    def _run_job(self, job: Job, case: Case, tracer: list[str] | None = None) -> process.Ending:
        """Run one worker process (or one a rank) in the environment of a case, and take in what it writes."""
        arm = self._arms[case.arm]
        if job.tasks:
            packages, memory = self._packages[case.framework], self._memory_of(job)
            job = replace(
                job,
                packages=packages,
                summary_above=self._run.settings.summary_above,
                memory=memory,
            )
        interpreter = arm.environments.interpreter(case.framework)
        folder = self._run.jobs / job.name
        folder.mkdir(parents=True)
        temporary = self._scratch / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        (folder / "job.json").write_text(job_to_json(job))
        nodes = job.tasks[0].case.nodes if job.tasks else 0
        started = Launch(interpreter, folder / "job.json", folder, job.world, nodes, self._mpi)
        command = launch.argv(
            job.tasks[0].case.launcher if job.world > 1 else "local", started, tracer or []
        )
        intake = _Intake(self, job)
        follower = process.Follower(folder, job.world, intake.take)
        timeout_s = self._timeout_s if self._timeout_s and job.tasks else _patience_s(job)
        log = self._logs / f"{job.name}.log"
        one_machine = job.world > 1 and nodes <= 1
        shared_memory = self._shared_memory.ranks if one_machine else None
        variables = launch.environment(
            temporary,
            hash_seed=job.hash_seed,
            shared_memory=shared_memory,
            root=arm.checkout,
            mpi=self._mpi,
        )
        try:
            ending = process.run(command, variables, log, follower, job.world, timeout_s)
        finally:
            self._shared_memory.clear_ranks()
        intake.close(ending)
        return ending

    def _memory_of(self, job: Job) -> str | None:
        """Where the job's cases keep checkpoints in memory: nowhere, where ranks are on nodes whose memory nobody clears."""
        on_one_machine = all(task.case.nodes <= 1 for task in job.tasks)
        levels = (
            self._shared_memory.levels
            if on_one_machine and any(task.case.from_memory for task in job.tasks)
            else None
        )
        return str(levels) if levels else None

    @property
    def _logs(self) -> Path:
        folder = self._run.folder / "logs"
        folder.mkdir(exist_ok=True)
        return folder

    def _name(self, role: str, slot: int, arm: str = "") -> str:
        return f"{len(list(self._logs.iterdir())) + 1:03d}-{role}-{slot}{arm}"

    def take(self, line: str) -> Record | None:
        """Take in one line of a worker. Raises InvalidLine."""
        record = self._run.absorb(line)
        if record is not None:
            self.progress.add(record)
            self._on_event(_event_of(record))
        return record

    def _add(self, record: Record) -> None:
        self._run.append(record)
        self.progress.add(record)
        self._on_event(_event_of(record))

    def _fail(self, case: str, slot: int, rank: int, phase: str, reason: str) -> None:
        self._add(FailureRecord("failure", case, slot, rank, "failed", phase, reason))

    def refuse(self, case: str, slot: int, rank: int, reason: str) -> None:
        """Fail a case whose worker wrote something that is no record."""
        if case not in self.progress.failed:
            self._fail(case, slot, rank, "records", reason)


class _Intake:
    """Takes in a job's lines.

    A line that is no record fails the case whose record follows it: it was written on the way
    there.
    """

    def __init__(self, session: Session, job: Job) -> None:
        self._session = session
        self._job = job
        self._invalid: dict[int, str] = {}

    def take(self, rank: int, line: str) -> None:
        """Take in one line of a rank."""
        try:
            record = self._session.take(line)
        except InvalidLine as error:
            self._invalid.setdefault(rank, f"the worker wrote an invalid record: {error}")
            return
        case = getattr(record, "case", None)
        if case is not None and rank in self._invalid:
            self._session.refuse(case, self._job.process, rank, self._invalid.pop(rank))

    def close(self, ending: process.Ending) -> None:
        """Fail the case at which the job ended for a line that nothing followed."""
        for rank, reason in self._invalid.items():
            if self._job.tasks:
                task = self._job.tasks[max(0, ending.at.task)]
                self._session.refuse(task.case.id, self._job.process, rank, reason)


def group(plan: Sequence[PlannedCase]) -> list[Unit]:
    """Put the cases that may share a process together, in the plan's order; as many as their kept checkpoints allow.

    Two arms' processes of the same cases follow one another: what lies between them is in their
    difference.
    """
    groups: dict[tuple[object, ...], dict[str, list[PlannedCase]]] = {}
    for item in plan:
        case = item.case
        # not even itself at another interval: it may own what a process has once
        alone = _key(case) if item.own_process else ""
        ranks = (case.world, case.load_world, case.strategy, case.launcher)
        shared = (case.experiment, case.framework, case.device, ranks, alone)
        groups.setdefault(shared, {}).setdefault(case.arm, []).append(item)
    in_turn = [itertools.zip_longest(*map(_split, by_arm.values())) for by_arm in groups.values()]
    return [
        unit
        for units in in_turn
        for side_by_side in units
        for unit in side_by_side
        if unit is not None
    ]


def _key(case: Case) -> str:
    """What a case is called on either side of a comparison."""
    return replace(case, arm="", options={}, framework_path="", method_path="").id


def state_bytes(case: Case) -> int:
    """The bytes of one rank's state, before the few that a framework adds."""
    return _state_bytes(case.workload, case.preset, case.precision, case.scale)


@functools.cache
def _state_bytes(workload: str, preset: str, precision: str, scale: int) -> int:
    return workloads.load(workload, preset, precision, scale=scale or 1).state_bytes


def needed_disk_bytes(plan: Sequence[PlannedCase]) -> int:
    """What a run takes at its fullest: a unit's kept checkpoints, one more under test, and the ceilings' two files."""
    kept = max(sum(_checkpoint_bytes(item) for item in unit.items) for unit in group(plan))
    at_work = max(_states_at_work(item.case) * _checkpoint_bytes(item) for item in plan)
    return (kept + at_work) * 11 // 10 + 2 * CALIBRATION_BYTES_AT_MOST


def _checkpoint_bytes(item: PlannedCase) -> int:
    return item.copies * state_bytes(item.case)


def _states_at_work(case: Case) -> int:
    """How many states lie in the scratch directory at once beside the kept checkpoints; every rank has its own references."""
    return _STATES_AT_WORK.get(case.experiment, 3) * (
        case.world if case.experiment in ("resume", "rerun") else 1
    )


def _split(items: Sequence[PlannedCase]) -> Iterator[Unit]:
    together: list[PlannedCase] = []
    for item in items:
        if together and sum(map(_checkpoint_bytes, [*together, item])) > _KEPT_BYTES_AT_MOST:
            yield Unit(tuple(together))
            together = []
        together.append(item)
    yield Unit(tuple(together))


def _patience_s(job: Job) -> float:
    """How long a job may stand in one phase: a slow start, or the slowest method known on this state, or a slow device's sweep."""
    size_bytes = max((state_bytes(task.case) for task in job.tasks), default=0)
    sweep_s = _SWEEP_TRANSFERS * job.calibration_bytes / _SLOWEST_DEVICE_BYTES_PER_S
    return _SLOWEST_START_S + max(size_bytes / _SLOWEST_METHOD_BYTES_PER_S, sweep_s)


def _calibration_bytes(plan: Sequence[PlannedCase]) -> int:
    """How much to sweep a directory with: about the largest state, in few sizes, so that runs can share a sweep."""
    largest_bytes = max(state_bytes(item.case) for item in plan)
    power_of_two = 1 << (largest_bytes - 1).bit_length()
    return min(max(power_of_two, _CALIBRATION_BYTES_AT_LEAST), CALIBRATION_BYTES_AT_MOST)


def _storage_of(record: CalibrationRecord) -> Storage:
    return Storage(
        direct=record.direct,
        write_block_bytes=record.write_block_bytes,
        write_depth=record.write_depth,
        read_block_bytes=record.read_block_bytes,
        read_depth=record.read_depth,
        counts_device_reads=record.counts_device_reads,
    )


def _event_of(record: Record) -> Event:
    if isinstance(record, FailureRecord):
        return Event(f"{record.status} in {record.phase}: {record.reason}")
    return Event()
