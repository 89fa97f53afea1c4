"""The jobs of ranks: they train by a script, are killed, and come back.

This module imports mpi4py, so the worker imports it only when its ranks are there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from mpi4py import MPI

from adapters.base import Method
from harness.experiments.recovery import clocks, quorum
from harness.experiments.recovery.checkpoints import Checkpoints
from harness.experiments.recovery.events import EventLog, files_of, read_events, started_ticks
from harness.experiments.recovery.member import (
    LeavableWorld,
    Member,
    Parts,
    PlainWorld,
)
from harness.experiments.recovery.peers import PeerWorld
from harness.experiments.recovery.script import Script, read_script, script_path
from harness.experiments.recovery.survivor import Survivor
from harness.experiments.recovery.timeline import strikes
from harness.experiments.recovery.training import Training
from harness.surviving import RankLost, SurvivingWorld
from harness.wire.case import Case, Task
from harness.worker.bench import Bench, Entries, load_class
from harness.worker.failures import describe, record_failure
from harness.worker.world import FIRST_PARENT, SPAWNED, World, end_now
from workloads import Workload


def run(bench: Bench, entries: Entries) -> None:
    """Train by the script of the case, and end this process."""
    index, task = entries[0]
    bench.output.task(index)
    script = read_script(script_path(bench.folders.scratch, task.case))
    events = Path(script.events)
    if script.program != "surviving":
        # A launcher that starts the ranks again gives them the same script.
        struck = [kill for _, kill in strikes(read_events(events))]
        script = script.without(struck)
    is_new = bool(files_of(events, bench.world.rank))
    log = EventLog(events, bench.world.rank)
    trains_on = False
    try:
        parts = parts_of(bench, task.case, script, log)
        trains_on = script.program != "plain"
        match script.program:
            case "plain":
                run_plain(bench, parts)
            case "surviving":
                run_surviving(bench, parts)
            case "quorum":
                quorum.train(bench, parts, is_new)
                bench.world.leave()
    except BaseException as error:
        # The driver reads the events of a process that was spawned, but not its records.
        # On a full disk this fails too, and must hide no error.
        with contextlib.suppress(OSError):
            log.write("raised", error=describe(error))
        if not trains_on:
            raise
        end_all(bench, task, error)


def end_all(bench: Bench, task: Task, error: BaseException) -> NoReturn:
    """Record an error, and end the job, whose other ranks would survive this one."""
    record_failure(bench.output, World(), [task], error)
    # A rank whose launcher has died has another parent, which is not to be ended.
    if os.getppid() == FIRST_PARENT:
        os.kill(FIRST_PARENT, signal.SIGTERM)
    end(bench)


def parts_of(bench: Bench, case: Case, script: Script, log: EventLog) -> Parts:
    """Return the parts of this rank, once it has compiled a step."""
    if MPI.Comm.Get_parent() == MPI.COMM_NULL:
        clocks.compare(MPI.COMM_WORLD, bench.world.node, log)
    assert isinstance(bench.workload, Workload)
    training = Training(bench.framework, bench.state, bench.workload, script)
    bench.output.enter("compile")
    training.warm_up()
    checkpoints = Checkpoints(
        Path(script.checkpoints),
        method_of(bench, case),
        on_complete=lambda step: log.write("complete", step=step),
    )
    return Parts(training, checkpoints, log, bench.peers)


def open_method(bench: Bench, parts: Parts, saves: bool, barrier: Callable[[], None]) -> None:
    """Open the case's method on the state, where the ranks save files.

    The rank that saves opens it first, because it may make memory that the others look into.
    """
    if not parts.training.script.saves_files:
        return
    if saves:
        parts.checkpoints.method.open(bench.state)
    barrier()
    if not saves:
        parts.checkpoints.method.open(bench.state)
    # While a rank opens a memory, its file has another size, and nobody could load it.
    barrier()


def method_of(bench: Bench, case: Case) -> Method[Any]:
    """Return the case's method as every rank needs it to read what another one has saved.

    A method names its files by its rank, and here another rank may load them. So it is always rank
    0 of a world of one. What it needs for itself has a folder of the real rank's own.
    """
    temporary = bench.place.temporary / f"method-{bench.world.rank}"
    temporary.mkdir(parents=True, exist_ok=True)
    place = replace(
        bench.place, rank=0, local_rank=0, temporary=temporary, memory=bench.memory(case)
    )
    method: Method[Any] = load_class(case.method_path)(place, bench.framework, dict(case.options))
    return method


def run_plain(bench: Bench, parts: Parts) -> None:
    """Train from the newest checkpoint on, if there is one, until all steps are done.

    Where the framework tells this rank that another one has died, end the process, because only a
    new start brings all ranks together again.
    """
    try:
        train_plain(bench, parts)
    except RankLost as error:
        parts.log.write("detected", told=str(error))
        sys.stdout.flush()
        os._exit(1)


def train_plain(bench: Bench, parts: Parts) -> None:
    """Train from the newest checkpoint on, as long as this rank does not take leave."""
    world = plain_world(bench)
    member = Member(world, parts)
    go_on_from_files(bench, member)
    while not member.is_done():
        bench.output.enter("train")
        if member.script.planned:
            take_leave(member, world)
        if world.slot not in world.slots:
            break
        member.take_step()
    parts.checkpoints.wait()
    bench.output.finish()
    bench.world.leave()


def go_on_from_files(bench: Bench, member: Member) -> None:
    """Load the newest checkpoint on all ranks, if there is one, and begin to train from there."""
    world, checkpoints = member.world, member.checkpoints
    begin_ns = time.monotonic_ns()
    with world.protected():
        open_method(bench, member.parts, world.slot == 0, world.team.Barrier)
    open_ns = time.monotonic_ns() - begin_ns
    saves_files = member.script.saves_files
    # The others cannot begin to load before this rank has told them what, so it looks in time.
    is_first = saves_files and world.rank_of(world.slot) == 0
    cached = checkpoints.cached_share() if is_first else None
    member.log.write("ready", open_ns=open_ns, cached=cached)
    newest = max(checkpoints.steps(), default=0) if saves_files else 0
    with world.protected():
        newest = world.team.bcast(newest)
    if newest:
        member.load_files(newest)
    member.log.write("restored", step=newest)
    member.begin()


def plain_world(bench: Bench) -> LeavableWorld:
    """Return the ranks as they meet without protection: in MPI, or by the framework's own means."""
    if bench.peers is None or bench.peers.over_mpi:
        return PlainWorld(MPI.COMM_WORLD)
    return PeerWorld(bench.peers, bench.world.rank, bench.world.size)


def take_leave(member: Member, world: LeavableWorld) -> None:
    """Let the holders of the slots that the script names leave before this step."""
    leaving = {kill.slot for kill in member.script.kills if kill.step == member.step}
    if leaving & set(world.slots):
        world.go_on_with(tuple(slot for slot in world.slots if slot not in leaving))


def run_surviving(bench: Bench, parts: Parts) -> None:
    """Train and recover from every kill, until all steps are done."""
    if MPI.Comm.Get_parent() != MPI.COMM_NULL:
        survivor = take_over(parts)
    else:
        world = surviving_world(bench, parts.training.script)
        survivor = Survivor(world, parts)
        survivor.processes = processes_of_slots(world, bench.world.node)
        open_method(bench, parts, world.slot == 0, MPI.COMM_WORLD.Barrier)
        parts.log.write("ready")
        # So that no member is killed while a spare is still on its way.
        MPI.COMM_WORLD.Barrier()
        if isinstance(world, SurvivingWorld) and world.is_spare:
            if not wait_for_slot(bench, survivor, world):
                end(bench)
        else:
            survivor.begin()
    train(bench, survivor)
    parts.checkpoints.wait()
    bench.output.finish()
    survivor.world.leave()


def surviving_world(bench: Bench, script: Script) -> SurvivingWorld | PeerWorld:
    """Return the ranks that go on after a failure."""
    if bench.peers is not None and not bench.peers.over_mpi:
        return PeerWorld(bench.peers, bench.world.rank, bench.world.size)
    return SurvivingWorld(
        MPI.COMM_WORLD,
        script.members,
        fills_slots=script.fills_slots,
        spawn=spawn_command(script),
    )


def spawn_command(script: Script) -> list[str]:
    """Return the command of a process that takes the slot of a dead one; empty where none does."""
    if script.how.newcomer != "spawned":
        return []
    job_file, folder = sys.argv[1:3]
    return [sys.executable, "-m", "harness.worker", job_file, folder, SPAWNED]


def take_over(parts: Parts) -> Survivor:
    """Take the slot of a dead rank in this process, which the survivors have spawned."""
    parts.log.write("ready")
    try:
        world, repair = SurvivingWorld.take_over(spawn_command(parts.training.script))
    except RankLost:
        # The survivors go on without this process, and may spawn another one. With another exit
        # status, mpirun would begin to end the job and never finish.
        os._exit(0)
    survivor = Survivor(world, parts)
    survivor.take_slot(repair)
    return survivor


def processes_of_slots(world: SurvivingWorld | PeerWorld, node: str) -> dict[int, tuple[int, int]]:
    """Return the process of each slot on this node: its number, and when it was started."""
    process = (os.getpid(), started_ticks(os.getpid()))
    everyone = MPI.COMM_WORLD.allgather((node, world.slot, process))
    of_slots = {}
    for of_node, slot, other in everyone:
        if of_node == node and slot in world.slots:
            of_slots[slot] = other
    return of_slots


def wait_for_slot(bench: Bench, survivor: Survivor, world: SurvivingWorld) -> bool:
    """Wait as a spare. Return whether this process has a slot now, or the others are done."""
    waiting = Waiting()
    shares: list[float] = []
    bench.output.enter("wait")
    # A repair is no part of the wait, because a spare takes a whole processor in it.
    repair = world.wait(survivor.script.pause_s, lambda: shares.append(waiting.share()))
    survivor.log.write("waited", share=shares[0] if shares else waiting.share())
    if repair is None:
        return False
    # Some have died while this one waited, and others hold their slots.
    survivor.processes.clear()
    survivor.take_slot(repair)
    return True


def train(bench: Bench, survivor: Survivor) -> None:
    """Take all steps, and recover where a rank is lost."""
    while not survivor.is_done():
        bench.output.enter("train")
        try:
            survivor.take_step()
        except RankLost as error:
            survivor.log.write("detected", told=str(error))
            survivor.recover(survivor.repair())


def end(bench: Bench) -> NoReturn:
    """End this process at once, because MPI_Finalize can hang after a failure."""
    bench.output.task(-1)
    bench.output.finish()
    end_now()


class Waiting:
    """The processor time of this process from now on."""

    def __init__(self) -> None:
        self._wall_s = time.monotonic()
        self._cpu_s = _cpu_s()

    def share(self) -> float:
        """Return the part of one processor that this process has taken."""
        return (_cpu_s() - self._cpu_s) / max(1e-9, time.monotonic() - self._wall_s)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
