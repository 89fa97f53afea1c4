"""`python -m harness.worker JOB.json OUT/`: do one job's work in the framework's interpreter."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import workloads
from adapters.base import DirectIo, Framework, Peers, Place
from harness import experiments
from harness.wire import endings, stacks, strikes
from harness.wire.case import CALIBRATE, TRACE, Case, Job, Storage, job_from_json
from harness.wire.experiment import Stage
from harness.wire.folders import Folders
from harness.wire.nodes import node_name
from harness.wire.records import WorkerRecord
from harness.worker import own_models
from harness.worker.backing import Backer
from harness.worker.bench import Bench, Entries, load_class
from harness.worker.ceiling import Ceiling, calibrate, random_ring
from harness.worker.failures import THREAD_ERRORS, record_failure
from harness.worker.guards.neighbours import MustBeAlone
from harness.worker.output import Output
from harness.worker.tracing import run_traces
from harness.worker.world import SPAWNED, SeparateWorld, World, end_now, join
from workloads import Workload

StageFunction = Callable[[Bench, Entries], None]


def main(job_file: str, folder: str, started: str = "") -> None:
    """Read the job, do it, and mark that it was done to the end."""
    job = job_from_json(Path(job_file).read_text())
    jobs_folder = Path(folder)
    stacks.offer(jobs_folder)
    if started == SPAWNED:
        # It is no rank of the driver's, which reads nothing there.
        folder = f"{folder}/{SPAWNED}-{os.getpid()}-{node_name()}"
        Path(folder).mkdir()
        world = World()
    elif _launches_itself(job):
        world = SeparateWorld()
    else:
        world = join(job.world)
    on_nodes = world.ranks_here < world.size
    output = Output(Path(folder), world.rank, job.process, on_nodes=on_nodes)
    if job.role == CALIBRATE:
        run_calibration(job, output)
    elif (stage := _stage(job)) is not None and stage.forks:
        run_forked(job, world, output, jobs_folder)
    else:
        run_tasks(job, world, output)
    output.task(-1)
    output.finish()
    world.leave()


def run_calibration(job: Job, output: Output) -> None:
    """Find out how the scratch directory takes I/O."""
    folders = Folders(Path(job.scratch))
    folders.ceilings.mkdir(parents=True, exist_ok=True)
    output.enter("calibrate")
    record = calibrate(folders.ceilings, job.calibration_bytes, job.not_direct, job.storage)
    output.write(record)


def run_forked(job: Job, world: World, output: Output, jobs_folder: Path) -> None:
    """Do each task in a process of its own, which begins with what all of them need.

    An import takes seconds, and a process that is killed has done only one task.
    """
    case = job.tasks[0].case
    load_class(case.framework_path)
    stage_function(case.experiment, job.role)
    random_ring()
    folders = Folders(Path(job.scratch))
    codes: list[int] = []
    for entry in enumerate(job.tasks):
        # What waits in the buffer would be printed by each child, too.
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.setsid()
            stacks.offer(jobs_folder)
            run_tasks(job, world, output, [entry])
            end_now()
        codes.append(_ended(child))
        endings.write(folders, codes)
        # A process that crashed has left its order with the gate, which would strike the next one.
        strikes.call_off()


def _ended(child: int) -> int:
    """Wait for a forked process, and return its exit code; minus its number for a signal.

    A runtime that does not survive the fork must not hold up the others, so it is ended in time.
    """
    descriptor = os.pidfd_open(child)
    has_ended, _, _ = select.select([descriptor], [], [], endings.AT_MOST_S)
    os.close(descriptor)
    if not has_ended:
        os.kill(child, endings.OVERDUE)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        # What a crash leaves at work would disturb the next one.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    return code


def run_tasks(job: Job, world: World, output: Output, chosen: Entries | None = None) -> None:
    """Do the tasks of one state after the other. A failure costs only the cases it concerns.

    `chosen` are some of the job's tasks; None for all.
    """
    concerned = chosen or list(enumerate(job.tasks))
    try:
        framework = load_class(job.tasks[0].case.framework_path)()
        by_state = _by_state(concerned)
        states = [entries for entries in by_state if _is_supported(framework, entries, output)]
        concerned = list(itertools.chain.from_iterable(states))
        # A framework must not be started on a device that it lacks.
        if not states:
            return
        bench = start(job, world, output, framework)
    except BaseException as error:
        record_failure(output, world, [task for _, task in concerned], error)
        return
    try:
        for entries in states:
            _run_state(bench, entries)
    except MustBeAlone:
        print("the rest goes on in other processes")
    finally:
        output.task(-1)
        output.enter("stop")
        bench.ceiling.close()
        bench.backer.close()
        bench.framework.stop()


def start(job: Job, world: World, output: Output, framework: Framework[Any]) -> Bench:
    """Start the framework, and return the surroundings of the job's trials."""
    case = job.tasks[0].case
    assert job.storage is not None
    folders = Folders(Path(job.scratch))
    world.require_shared(folders.scratch)
    for folder in (folders.ceilings, folders.temporary, folders.saves):
        folder.mkdir(parents=True, exist_ok=True)
    stage = _stage(job)
    is_alone = stage is not None and stage.alone
    place = Place(
        rank=world.rank,
        world=1 if is_alone else world.size,
        device=case.device,
        temporary=folders.temporary,
        io=_direct_io(job.storage),
        rendezvous=None if is_alone else world.rendezvous(),
        local_rank=world.local_rank,
        strategy=case.strategy if world.size > 1 and not is_alone else "",
        programs=folders.programs,
    )
    peers = _join_peers(case, place, world)
    framework.start(place)
    bench = Bench(
        job=job,
        world=world,
        output=output,
        place=place,
        framework=framework,
        ceiling=Ceiling(job.storage, folders.ceilings, world),
        backer=Backer(world.ranks_here),
        folders=folders,
        peers=peers,
    )
    if world.rank == 0 or bench.every_rank_writes:
        output.write(worker_record(job, world, case.device))
    if bench.guards(THREAD_ERRORS):
        bench.thread_errors.watch()
    return bench


def _join_peers(case: Case, place: Place, world: World) -> Peers | None:
    """Join the ranks by the framework's own means; None where the case has none."""
    if not case.peers:
        return None
    joined = replace(place, world=world.size, rendezvous=world.rendezvous())
    peers: Peers = load_class(case.peers["class"])(joined)
    return peers


def _launches_itself(job: Job) -> bool:
    """Return whether the framework's own launcher starts the ranks of a job."""
    return bool(job.tasks) and bool(job.tasks[0].case.peers.get("launch"))


def worker_record(job: Job, world: World, device: str) -> WorkerRecord:
    """Return the interpreter, packages, device and node of this rank."""
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


def stage_function(experiment: str, role: str) -> StageFunction:
    """Return the function that does a stage. Raise KeyError where the experiment has none."""
    if role == TRACE:
        return run_traces
    function: StageFunction = experiments.part(experiment, "worker").STAGES[role]
    return function


def _run_state(bench: Bench, entries: Entries) -> None:
    """Build a state and do the tasks that share it."""
    case = entries[0][1].case
    role = bench.job.role
    bench.output.task(-1)
    try:
        with bench.phase("build"):
            seed = bench.job.seed + _seed_offset(case.experiment, role)
            bench.build(case.model or _workload(case), seed)
        stage_function(case.experiment, role)(bench, entries)
        bench.check_kept(entries)
        if case.model is not None:
            # A later step of the user's may have imported what no digest has.
            own_models.require_recorded(case.model)
    except MustBeAlone:
        raise
    except BaseException as error:
        # With several ranks, the others would wait for this one in a barrier.
        record_failure(bench.output, bench.world, [task for _, task in entries], error)
    bench.drop_state()


def _seed_offset(experiment: str, role: str) -> int:
    """Return the number that a stage adds to the seed, so that a load's target is another state."""
    return 0 if role == TRACE else experiments.experiment(experiment).stage(role).seed_offset


def _stage(job: Job) -> Stage | None:
    """Return the stage that a job with tasks does; None for a job that traces saves."""
    if job.role == TRACE:
        return None
    return experiments.experiment(job.tasks[0].case.experiment).stage(job.role)


def _by_state(entries: Entries) -> list[Entries]:
    """Return the tasks with their indices, those of one state together."""
    groups: dict[tuple[object, ...], Entries] = {}
    for index, task in entries:
        case = task.case
        state = (case.workload, case.preset, case.precision, case.dropout, case.scale)
        groups.setdefault(state, []).append((index, task))
    return list(groups.values())


def _is_supported(framework: Framework[Any], entries: Entries, output: Output) -> bool:
    """Return whether the framework can hold the tasks' state on their device.

    Where it cannot, write its reason as the record of each task.
    """
    case = entries[0][1].case
    workload = None if case.model else _workload(case)
    reason = framework.unsupported(workload, case.device)
    if reason is None:
        return True
    for _, task in entries:
        output.fail(task.case.id, reason, "unsupported")
    return False


def _workload(case: Case) -> Workload:
    return workloads.load(case.workload, case.preset, case.precision, case.dropout, case.scale or 1)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _direct_io(settings: Storage) -> DirectIo:
    return DirectIo(settings.direct, settings.write_block_bytes, settings.write_depth)


if __name__ == "__main__":
    # Forget a folder that an import has chosen: the driver has pointed TMPDIR into scratch.
    tempfile.tempdir = None
    main(*sys.argv[1:])
