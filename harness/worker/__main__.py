"""`python -m harness.worker JOB.json OUT/`: do one job's work in the framework's interpreter."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import workloads
from adapters.base import DirectIo, Framework, Method, Place
from harness.experiments.parity.worker import run_trajectory
from harness.experiments.reshard.worker import run_parts, run_reloads
from harness.experiments.resume.worker import run_again, run_interrupted, run_resumed, run_straight
from harness.experiments.sizes.worker import run_inspections, run_repeats
from harness.experiments.train.worker import Pace, TrainingTrial
from harness.wire.case import Case, Job, JobRole, Storage, Task, job_from_json
from harness.wire.folders import Folders
from harness.wire.records import OverheadRecord, WorkerRecord
from harness.worker import usage, verify
from harness.worker.backing import Backer
from harness.worker.bench import (
    Bench,
    Fence,
    bytes_here,
    measure_copies,
    no_old_garbage,
    record_failure,
    state_record,
)
from harness.worker.ceiling import Ceiling, calibrate
from harness.worker.output import Output
from harness.worker.trial import EmptyMethod, LoadTrial, SaveTrial, Trial, marked_save, timed_save
from harness.worker.world import World, join
from workloads import Workload

TrialT = TypeVar("TrialT", bound=Trial[Any])
Entries = list[tuple[int, Task]]  # tasks with their index in the job


_EMPTY_SAVES = 20
# a load's first target has taken none: counters and the position in the data differ too
_STEPS_BEFORE_SAVING = 2


def main(job_file: str, folder: str) -> None:
    """Read the job, do it, and leave the mark that says it was done to the end."""
    job = job_from_json(Path(job_file).read_text())
    world = join(job.world)
    output = Output(Path(folder), world.rank, job.process, on_nodes=world.ranks_here < world.size)
    if job.role == "calibrate":
        run_calibration(job, output)
    else:
        run_tasks(job, world, output)
    output.task(-1)
    output.finish()
    world.leave()


def run_calibration(job: Job, output: Output) -> None:
    """Sweep the scratch directory."""
    folders = Folders(Path(job.scratch))
    folders.ceilings.mkdir(parents=True, exist_ok=True)
    output.enter("calibrate")
    output.write(calibrate(folders.ceilings, job.calibration_bytes, job.not_direct))


def run_tasks(job: Job, world: World, output: Output) -> None:
    """Take the tasks of one state after the other, the methods of each interleaved.

    A failure costs what it concerns.
    """
    try:
        framework = _load_class(job.tasks[0].case.framework_path)()
        states = [
            entries for entries in _by_state(job.tasks) if _is_supported(framework, entries, output)
        ]
        if not states:  # a framework must not be started on a device that it lacks
            return
        bench = start(job, world, output, framework)
    except (Exception, SystemExit) as error:
        record_failure(output, world, job.tasks, error)
        return
    try:
        for entries in states:
            _run_state(bench, entries)
    finally:
        output.task(-1)
        output.enter("stop")
        bench.ceiling.close()
        bench.backer.close()
        bench.framework.stop()


def _is_supported(framework: Framework[Any], entries: Entries, output: Output) -> bool:
    """Whether the framework can hold the tasks' state on their device; where not, it says why, and that is their record."""
    case = entries[0][1].case
    reason = framework.unsupported(_workload(case), case.device)
    for _, task in entries if reason else ():
        output.fail(task.case.id, str(reason), "unsupported")
    return reason is None


def start(job: Job, world: World, output: Output, framework: Framework[Any]) -> Bench:
    """Start the framework and make the surroundings of the trials."""
    case = job.tasks[0].case
    assert job.storage is not None
    folders = Folders(Path(job.scratch))
    world.require_shared(folders.scratch)
    for folder in (folders.ceilings, folders.temporary, folders.trial):
        folder.mkdir(parents=True, exist_ok=True)
    place = Place(
        rank=world.rank,
        world=world.size,
        device=case.device,
        temporary=folders.temporary,
        io=_direct_io(job.storage),
        rendezvous=world.rendezvous(),
        local_rank=world.local_rank,
        strategy=case.strategy if world.size > 1 else "",
    )
    framework.start(place)
    if world.rank == 0 or world.size <= job.summary_above:
        output.write(worker_record(job, world, case.device))
    bench = Bench(
        job,
        world,
        output,
        place,
        framework,
        Ceiling(job.storage, folders.ceilings, world),
        Backer(),
        folders,
    )
    bench.watch_threads()
    return bench


def _run_state(bench: Bench, entries: Entries) -> None:
    """Build a state and do the tasks that share it."""
    bench.output.task(-1)
    try:
        build(bench, entries[0][1].case)
        if bench.job.role == "save":
            bench.output.enter("overhead")
            bench.write_alike(measure_overhead(bench))
        _ROLES[bench.job.role](bench, entries)
    except (
        Exception,
        SystemExit,
    ) as error:  # with several ranks, the others would wait for this one in a barrier
        record_failure(bench.output, bench.world, [task for _, task in entries], error)
    bench.drop_state()


def build(bench: Bench, case: Case) -> None:
    """Build the state of a case, and train it where it is going to be timed.

    A load's target gets its steps before each load.

    A traced save shows which calls are made and how many bytes they take, which training does not
    change.
    """
    bench.output.enter("build")
    loading = bench.job.role == "load"
    bench.adopt(_workload(case), bench.job.seed + 1 if loading else bench.job.seed)
    if bench.job.role in ("save", "steps"):
        bench.output.enter("train")
        bench.train(_STEPS_BEFORE_SAVING)


def measure_overhead(bench: Bench) -> OverheadRecord:
    """What an empty method costs, and the memory that the ceilings' rings and the digests take beside the state."""
    begin = usage.begin()
    method = EmptyMethod(bench.place, bench.framework, {})
    path = bench.fresh(bench.folders.trial)
    costs_ns = []
    for _ in range(_EMPTY_SAVES):
        phases = timed_save(bench, method, path)
        costs_ns.append(phases.save_ns + phases.staged_ns + phases.finished_ns)
    bench.ceiling.write_ns(1 << 20)
    bench.ceiling.copy_ns(1 << 20)
    verify.digests(bench.framework.leaves(bench.state))
    return OverheadRecord(
        kind="overhead",
        job=bench.job.name,
        process=bench.job.process,
        rank=bench.world.rank,
        empty_save_ns=tuple(costs_ns),
        harness_peak_bytes=bench.ceiling.peak_bytes + usage.since(begin).peak_rss_bytes,
    )


def run_saves(bench: Bench, entries: Entries) -> None:
    """Take every task's saves in turn, then leave one checkpoint of each for the loading process."""
    copies_ns, copied_bytes = measure_copies(bench), bytes_here(bench)

    def make(task: Task) -> SaveTrial:
        record = state_record(bench, task.case, copies_ns)
        bench.write_alike(record)
        return SaveTrial(bench, task, _method_class(task), record.covered_bytes, copied_bytes)

    trials = bench.attempt(entries, make)
    trials = _interleave(bench, trials, Fence(bench, "write"))
    bench.attempt(trials, SaveTrial.keep)


def run_steps(bench: Bench, entries: Entries) -> None:
    """Take every task's blocks of training in turn, then leave one checkpoint of each for the verifying process."""
    copies_ns = measure_copies(bench)

    def make(task: Task) -> TrainingTrial:
        record = state_record(bench, task.case, copies_ns)
        bench.write_alike(record)
        return TrainingTrial(bench, task, _method_class(task), record.covered_bytes)

    trials = _interleave(bench, bench.attempt(entries, make), Pace(bench))
    bench.attempt(trials, TrainingTrial.keep)


def run_loads(bench: Bench, entries: Entries) -> None:
    """Take every task's loads in turn."""

    def make(task: Task) -> LoadTrial:
        size_bytes = state_record(bench, task.case, (0, 0)).covered_bytes
        return LoadTrial(bench, task, _method_class(task), size_bytes)

    _interleave(bench, bench.attempt(entries, make), Fence(bench, "read"))


def run_traces(bench: Bench, entries: Entries) -> None:
    """Save once with every instant marked, for the tracer around this process."""

    def trace(task: Task) -> None:
        method = bench.method(task.case, _method_class(task))
        marked_save(bench, method, task.case, bench.fresh(bench.folders.trial))
        bench.output.enter("close")
        method.close()
        bench.clear(bench.folders.trial)

    bench.attempt(entries, trace)


def run_trajectories(bench: Bench, entries: Entries) -> None:
    """Train from the beginning for every task; only one of them can have this state."""
    bench.attempt(entries, lambda task: run_trajectory(bench, task.case))


def _interleave(
    bench: Bench, trials: list[tuple[int, TrialT]], fence: Fence | Pace
) -> list[tuple[int, TrialT]]:
    """Take one sample of each trial after the other until none wants more; returns those that did not fail.

    Another method opens each round, and the state moves on between rounds.
    """

    def sample(trial: TrialT) -> TrialT:
        if trial.wants_more:
            trial.sample(fence)
        return trial

    with no_old_garbage():
        while any(trial.wants_more for _, trial in trials):
            trials = bench.attempt([*trials[1:], *trials[:1]], sample)
            if bench.job.role == "save":
                bench.output.enter("train")
                bench.train()
    return trials


def _by_state(tasks: Sequence[Task]) -> list[Entries]:
    """The tasks with their indices, those of one state together."""
    groups: dict[tuple[object, ...], Entries] = {}
    for index, task in enumerate(tasks):
        case = task.case
        groups.setdefault(
            (case.workload, case.preset, case.precision, case.dropout, case.scale), []
        ).append((index, task))
    return list(groups.values())


def _workload(case: Case) -> Workload:
    return workloads.load(case.workload, case.preset, case.precision, case.dropout, case.scale or 1)


_ROLES: dict[JobRole, Callable[[Bench, Entries], None]] = {
    "save": run_saves,
    "load": run_loads,
    "trace": run_traces,
    "inspect": lambda bench, entries: run_inspections(bench, entries, _method_class),
    "repeat": lambda bench, entries: run_repeats(bench, entries, _method_class),
    "train": run_trajectories,
    "steps": run_steps,
    "straight": run_straight,
    "interrupt": lambda bench, entries: run_interrupted(bench, entries, _method_class),
    "resume": lambda bench, entries: run_resumed(bench, entries, _method_class),
    "again": run_again,
    "part": lambda bench, entries: run_parts(bench, entries, _method_class),
    "reload": lambda bench, entries: run_reloads(bench, entries, _method_class),
}


def worker_record(job: Job, world: World, device: str) -> WorkerRecord:
    """Who measures: interpreter, packages, device."""
    return WorkerRecord(
        kind="worker",
        job=job.name,
        process=job.process,
        rank=world.rank,
        python=platform.python_version(),
        packages={name: _version(name) for name in job.packages},
        device=device,
        pid=os.getpid(),
        threads=threading.active_count(),
        started_at_s=time.time(),
        cpus=len(os.sched_getaffinity(0)),
        ranks_here=world.ranks_here,
        world=world.size,
        framework=job.tasks[0].case.framework,
        node=world.node,
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _method_class(task: Task) -> type[Method[Any]]:
    found: type[Method[Any]] = _load_class(task.case.method_path)
    return found


def _load_class(path: str) -> Any:
    """Import "package.module:Class"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _direct_io(settings: Storage) -> DirectIo:
    return DirectIo(settings.direct, settings.write_block_bytes, settings.write_depth)


if __name__ == "__main__":
    tempfile.tempdir = None  # the driver has pointed TMPDIR into the scratch directory
    main(sys.argv[1], sys.argv[2])
