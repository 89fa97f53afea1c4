"""The jobs of ranks: they train by a script, are killed, and come back.

This module imports mpi4py, so the worker imports it only when its ranks are there.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from mpi4py import MPI

from adapters.base import Method
from harness.experiments.recovery.checkpoints import Checkpoints
from harness.experiments.recovery.events import EventLog
from harness.experiments.recovery.member import Member, PlainWorld
from harness.experiments.recovery.script import Script, read_script, script_path
from harness.experiments.recovery.survivor import Survivor
from harness.experiments.recovery.training import Training
from harness.surviving import RankLost, SurvivingWorld
from harness.wire.case import Case
from harness.worker.bench import Bench, Entries, load_class
from harness.worker.failures import record_failure
from harness.worker.world import World
from workloads import Workload


def run(bench: Bench, entries: Entries) -> None:
    """Train by the script of the case, and end this process."""
    _, task = entries[0]
    bench.output.task(entries[0][0])
    script = read_script(script_path(bench.folders.scratch, task.case))
    log = EventLog(Path(script.events), MPI.COMM_WORLD.rank)
    assert isinstance(bench.workload, Workload)
    training = Training(bench.framework, bench.state, bench.workload, script)
    bench.output.enter("compile")
    training.warm_up()
    checkpoints = open_checkpoints(bench, MPI.COMM_WORLD, task.case, script)
    if not script.survives:
        run_plain(bench, MPI.COMM_WORLD, training, checkpoints, log)
        return
    try:
        run_surviving(bench, MPI.COMM_WORLD, training, checkpoints, log)
    except BaseException as error:
        # The others would take it for a failure that they can survive.
        record_failure(bench.output, World(), [task], error)
        os.kill(os.getppid(), signal.SIGTERM)
        end(bench)


def open_checkpoints(bench: Bench, comm: Any, case: Case, script: Script) -> Checkpoints:
    """Return the checkpoints of the case's method, which is opened on the state.

    The rank that saves opens it first, because it may make memory that the others look into.
    """
    method = method_of(bench, comm.rank, case)
    if script.saves_files:
        if comm.rank == 0:
            method.open(bench.state)
        comm.Barrier()
        if comm.rank > 0:
            method.open(bench.state)
    return Checkpoints(Path(script.checkpoints), method)


def method_of(bench: Bench, rank: int, case: Case) -> Method[Any]:
    """Return the case's method as every rank needs it to read what another one has saved.

    A method names its files by its rank, and here another rank may load them. So it is always rank
    0 of a world of one. What it needs for itself has a folder of the real rank's own.
    """
    temporary = bench.place.temporary / f"method-{rank}"
    temporary.mkdir(parents=True, exist_ok=True)
    place = replace(
        bench.place, rank=0, local_rank=0, temporary=temporary, memory=bench.memory(case)
    )
    method: Method[Any] = load_class(case.method_path)(place, bench.framework, dict(case.options))
    return method


def run_plain(
    bench: Bench, comm: Any, training: Training, checkpoints: Checkpoints, log: EventLog
) -> None:
    """Train from the newest checkpoint on, if there is one, until all steps are done."""
    world = PlainWorld(comm)
    member = Member(world, training, checkpoints, log)
    log.write("ready")
    newest = max(checkpoints.steps(), default=0) if training.script.saves_files else 0
    newest = world.team.bcast(newest)
    if newest:
        member.load_files(newest)
    log.write("restored", step=newest)
    member.begin()
    while member.step < training.script.steps:
        bench.output.enter("train")
        if training.script.planned:
            take_leave(member, world)
        if world.team is None:
            break
        member.take_step()
    checkpoints.wait()
    bench.output.finish()
    bench.world.leave()


def take_leave(member: Member, world: PlainWorld) -> None:
    """Let the holders of the slots that the script names leave before this step."""
    leaving = {kill.slot for kill in member.script.kills if kill.step == member.step}
    if not leaving & set(world.slots):
        return
    leaves = world.slot in leaving
    team = world.team.Split(MPI.UNDEFINED if leaves else 0, world.slot)
    world.team = None if leaves else team
    world.slots = tuple(slot for slot in world.slots if slot not in leaving)


def run_surviving(
    bench: Bench, comm: Any, training: Training, checkpoints: Checkpoints, log: EventLog
) -> None:
    """Train and recover from every kill, until all steps are done."""
    script = training.script
    world = SurvivingWorld(comm, script.members, fills_slots=script.fills_slots)
    log.write("ready")
    # So that no member is killed while a spare is still on its way.
    comm.Barrier()
    survivor = Survivor(world, training, checkpoints, log)
    survivor.processes = dict(enumerate(comm.allgather(os.getpid())[: script.members]))
    if world.is_spare:
        if not wait_for_slot(bench, survivor):
            end(bench)
    else:
        survivor.begin()
    train(bench, survivor)
    checkpoints.wait()
    bench.output.finish()
    world.leave()


def wait_for_slot(bench: Bench, survivor: Survivor) -> bool:
    """Wait as a spare. Return whether this process has a slot now, or the others are done."""
    waiting = Waiting()
    bench.output.enter("wait")
    repair = survivor.world.wait(survivor.script.pause_s)
    survivor.log.write("waited", share=waiting.share())
    if repair is None:
        return False
    survivor.recover(repair)
    return True


def train(bench: Bench, survivor: Survivor) -> None:
    """Take all steps, and recover where a rank is lost."""
    while survivor.step < survivor.script.steps:
        bench.output.enter("train")
        try:
            survivor.take_step()
        except RankLost:
            survivor.log.write("detected")
            survivor.recover(survivor.repair())


def end(bench: Bench) -> NoReturn:
    """End this process at once, because MPI_Finalize can hang after a failure."""
    bench.output.task(-1)
    bench.output.finish()
    sys.stdout.flush()
    os._exit(0)


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
