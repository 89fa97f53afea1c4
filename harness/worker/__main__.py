"""`python -m harness.worker JOB.json OUT/`: do one job's work in the framework's interpreter."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import workloads
from adapters.base import DirectIo, Framework, Method, Pending, Place
from harness.case import Job, Storage, Task, job_from_json
from harness.record import OverheadRecord, Status, WorkerRecord
from harness.worker import storage, usage, verify
from harness.worker.backing import Backer
from harness.worker.bench import Bench, Fence, describe, measure_copies, state_record
from harness.worker.ceiling import Ceiling, calibrate
from harness.worker.folders import Folders
from harness.worker.output import DONE, Output
from harness.worker.trial import EmptyMethod, LoadTrial, SaveTrial, Trial, marked_save, timed_save
from harness.worker.world import World, join


class Unsupported(Exception):
    """The framework cannot hold this workload on this device, and says why."""


_EMPTY_SAVES = 20
_STEPS_BEFORE_SAVING = 2  # a load's target starts with one step: counters and the position in the data differ too


def main(job_file: str, folder: str) -> None:
    """Read the job, do it, and leave the mark that says it was done to the end."""
    job = job_from_json(Path(job_file).read_text())
    world = join(job.tasks[0].case.world if job.tasks else 1)
    output = Output(Path(folder), world.rank, job.process)
    if job.role == "calibrate":
        run_calibration(job, output)
    else:
        run_tasks(job, world, output)
    output.task(-1)
    output.enter(DONE)
    world.leave()


def run_calibration(job: Job, output: Output) -> None:
    """Sweep the scratch directory."""
    folders = Folders(Path(job.scratch))
    folders.ceilings.mkdir(parents=True, exist_ok=True)
    output.enter("calibrate")
    output.write(calibrate(folders.ceilings, job.calibration_bytes, job.not_direct))


def run_tasks(job: Job, world: World, output: Output) -> None:
    """Build the state once and take every task's samples on it, the methods interleaved."""
    try:
        bench = prepare(job, world, output)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        status: Status = "unsupported" if isinstance(error, Unsupported) else "failed"
        for task in job.tasks:
            output.fail(task.case.id, str(error) if status == "unsupported" else describe(error), status)
        world.fail()
        return
    try:
        {"save": run_saves, "load": run_loads, "trace": run_traces}[job.role](bench)
    finally:
        output.task(-1)
        output.enter("stop")
        bench.ceiling.close()
        bench.backer.close()
        bench.framework.stop()


def prepare(job: Job, world: World, output: Output) -> Bench:
    """Start the framework, build and train the state, and measure what the harness itself costs."""
    case = job.tasks[0].case
    assert job.storage is not None
    folders = Folders(Path(job.scratch))
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
    )
    framework: Framework[Any] = _load_class(case.framework_path)()
    output.enter("start")
    framework.start(place)
    output.write(worker_record(job, world, case.device))
    output.enter("build")
    workload = workloads.load(case.workload, case.preset, case.precision, case.dropout)
    reason = framework.unsupported(workload, case.device)
    if reason:
        raise Unsupported(reason)
    saving = job.role != "load"
    state = framework.build(workload, job.seed if saving else job.seed + 1)
    start = usage.begin()
    ceiling = Ceiling(job.storage, folders.ceilings, world)
    bench = Bench(job, world, output, place, framework, workload, state, ceiling, Backer(), folders)
    bench.watch_threads()
    if job.role == "save":
        output.enter("overhead")
        measure_overhead(bench, start)
    output.enter("train")
    bench.train(_STEPS_BEFORE_SAVING if saving else 0)
    return bench


def measure_overhead(bench: Bench, start: usage.Reading) -> None:
    """Record what an empty method costs, and the memory that ceilings and digests take beside the state."""
    method = EmptyMethod(bench.place, bench.framework, {})
    path = bench.fresh(bench.folders.trial)
    costs_ns = []
    for _ in range(_EMPTY_SAVES):
        phases = timed_save(bench, method, path)
        costs_ns.append(phases.save_ns + phases.staged_ns + phases.finished_ns)
    bench.ceiling.write_ns(1 << 20)
    verify.digests(bench.framework.leaves(bench.state))
    bench.output.write(
        OverheadRecord(
            kind="overhead",
            job=bench.job.name,
            process=bench.job.process,
            rank=bench.world.rank,
            empty_save_ns=tuple(costs_ns),
            harness_peak_bytes=usage.since(start).peak_rss_bytes,
        )
    )


def run_saves(bench: Bench) -> None:
    """Take every task's saves in turn, then leave one checkpoint of each for the loading process."""
    copies_ns = measure_copies(bench)

    def make(task: Task, method_class: type[Method[Any]]) -> Trial:
        record = state_record(bench, task.case, copies_ns)
        bench.output.write(record)
        return SaveTrial(bench, task, method_class, record.covered_bytes)

    trials = _attempt_each(bench, list(enumerate(bench.job.tasks)), lambda task: make(task, _method_class(task)))
    trials = _interleave(bench, trials, Fence(bench, "write"))
    _attempt_each(bench, trials, lambda trial: trial.keep())


def run_loads(bench: Bench) -> None:
    """Take every task's loads in turn."""

    def make(task: Task) -> Trial:
        size_bytes = state_record(bench, task.case, (0, 0)).covered_bytes
        return LoadTrial(bench, task, _method_class(task), size_bytes)

    trials = _attempt_each(bench, list(enumerate(bench.job.tasks)), make)
    _interleave(bench, trials, Fence(bench, "read"))


def run_traces(bench: Bench) -> None:
    """Save once unseen and once with every instant marked, for the tracer around this process."""

    def trace(task: Task) -> None:
        method = bench.method(task.case, _method_class(task))
        bench.output.enter("save")
        _finish(method.save(bench.state, bench.fresh(bench.folders.trial)))
        marked_save(bench, method, task.case, bench.fresh(bench.folders.trial))
        bench.output.enter("close")
        method.close()
        storage.remove_tree(bench.folders.trial)

    _attempt_each(bench, list(enumerate(bench.job.tasks)), trace)


def _interleave(bench: Bench, trials: list[tuple[int, Any]], fence: Fence) -> list[tuple[int, Any]]:
    """Take one sample of each trial after the other until none wants more; returns those that did not fail."""
    first = 0
    while any(trial.wants_more for _, trial in trials):
        order = trials[first:] + trials[:first]
        order = _attempt_each(bench, order, lambda trial: trial.sample(fence) if trial.wants_more else None, keep=True)
        first = (first + 1) % max(1, len(order))  # another method opens each round
        trials = sorted(order, key=lambda entry: entry[0])
        if bench.job.role == "save":
            bench.output.enter("train")
            bench.train()
    return trials


def _attempt_each(
    bench: Bench, entries: list[tuple[int, Any]], action: Callable[[Any], Any], keep: bool = False
) -> list[tuple[int, Any]]:
    """Act on each (task index, thing); a failure becomes a record and drops the thing, and the others go on.

    Returns (task index, result), or with `keep` the things themselves. With several ranks a failure ends the job: the other
    ranks wait in a barrier.
    """
    done = []
    for index, entry in entries:
        bench.output.task(index)
        try:
            result = action(entry)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            bench.output.fail(bench.job.tasks[index].case.id, describe(error))
            bench.world.fail()
            bench.thread_errors.clear()
            storage.remove_tree(bench.folders.trial)
        else:
            done.append((index, entry if keep else result))
    return done


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


def _finish(pending: Pending) -> None:
    pending.staged()
    pending.finished()


if __name__ == "__main__":
    tempfile.tempdir = None  # the driver has pointed TMPDIR into the scratch directory
    main(sys.argv[1], sys.argv[2])
