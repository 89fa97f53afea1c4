"""The ranks of a recovery job: they train by a script, are killed, and come back.

This module imports mpi4py, so the worker imports it only when its ranks are there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from mpi4py import MPI

from adapters.base import Method
from harness.experiments.recovery.checkpoints import Checkpoints, when_half_written
from harness.experiments.recovery.events import EventLog
from harness.experiments.recovery.script import SAVE_EVERY, Script, read_script, script_path
from harness.experiments.recovery.training import Leaves, Striker, Training, add_up
from harness.surviving import RankLost, Repair, SurvivingWorld
from harness.wire.case import Case
from harness.worker.bench import Bench, Entries, load_class
from harness.worker.failures import record_failure
from harness.worker.verify import sha256
from harness.worker.world import World


class TrainingWorld(Protocol):
    """The ranks that train, whether or not they can survive a failure."""

    slot: int
    slots: tuple[int, ...]
    team: Any
    agreement_s: float

    def protected(self) -> AbstractContextManager[None]:
        """Exchange something in a block that ends in an agreement, if there is one."""

    def rank_of(self, slot: int) -> int:
        """Return the rank in `team` of the member that holds a slot."""


class PlainWorld:
    """Ranks without protection: the launcher ends all of them when one dies."""

    agreement_s = 0.0

    def __init__(self, comm: Any) -> None:
        self.team = comm.Dup()
        self.slot = self.team.rank
        self.slots = tuple(range(self.team.size))

    @contextlib.contextmanager
    def protected(self) -> Iterator[None]:
        """Run the block."""
        yield

    def rank_of(self, slot: int) -> int:
        """Return the rank that holds a slot."""
        return self.slots.index(slot)


class Member:
    """One rank that trains, or a spare that has taken a slot."""

    def __init__(
        self, world: TrainingWorld, training: Training, checkpoints: Checkpoints, log: EventLog
    ) -> None:
        self.world = world
        self.training = training
        self.script = training.script
        self.checkpoints = checkpoints
        self.log = log
        self.striker = Striker(self.script.kills, log)
        # what this rank alone has, as it was when the present step began
        self.own: Leaves = {}
        # what its neighbour alone has, as it was then, and the neighbour's slot
        self.mirrored: tuple[int, Leaves] = (-1, {})
        # what it will be once all ranks agree that the step is done
        self.own_after: Leaves = {}
        # the last checkpoint in memory: the step, and the leaves of all roles
        self.in_memory: tuple[int, Leaves, Leaves] = (0, {}, {})
        self.mirrored_in_memory: tuple[int, Leaves] = (-1, {})

    @property
    def step(self) -> int:
        """The number of steps that this rank has done."""
        return self.training.step

    def begin(self) -> None:
        """Note the state at the beginning, and show it to the neighbour."""
        self.own = self.training.own_leaves()
        if self.script.mirror:
            with self.world.protected():
                mirrored = self.exchange(self.own)
            self.mirrored = mirrored
        if self.script.way == "rollback-memory":
            self.save_in_memory()

    def take_step(self) -> None:
        """Take one step together, and save a checkpoint when it is time for one."""
        step, slot = self.step, self.world.slot
        begin_ns = time.monotonic_ns()
        self.log.write("step", step=step)
        with self.world.protected():
            total = self.training.gradients(
                slot, self.world.slots, lambda: self.striker.strike(step, "forward", slot)
            )
            copies_ns = self.copy_own()
            self.striker.strike(step, "before", slot)
            self.striker.strike(step, "stopped", slot)
            add_up(self.world.team, total, lambda: self.striker.strike(step, "exchange", slot))
            self.striker.strike(step, "after", slot)
        if self.striker.is_due(step, "apart", slot):
            self.give_up_step(step, slot)
        self.own, self.mirrored = self.own_after, self.mirrored_after
        loss = self.training.take_step(total, self.world.slots)
        self.log.write(
            "done",
            step=step,
            loss=loss,
            step_ns=time.monotonic_ns() - begin_ns,
            agreement_ns=round(self.world.agreement_s * 1e9),
            copies_ns=copies_ns,
        )
        self.log_digest()
        if self.step % SAVE_EVERY == 0:
            self.save()

    def give_up_step(self, step: int, slot: int) -> None:
        """Behave as if the exchange had failed on this rank alone, so that it falls behind."""
        raise NotImplementedError("only ranks that survive failures can fall behind")

    def copy_own(self) -> int:
        """Note what this rank alone has after the forward passes; return the nanoseconds taken."""
        begin_ns = time.monotonic_ns()
        self.mirrored_after = self.mirrored
        if self.script.survives:
            self.own_after = self.training.own_leaves()
        if self.script.mirror:
            self.mirrored_after = self.exchange(self.own_after)
        return time.monotonic_ns() - begin_ns

    def exchange(self, own: Leaves) -> tuple[int, Leaves]:
        """Give this rank's own leaves to the next slot, and return those of the one before."""
        team, slots = self.world.team, self.world.slots
        index = slots.index(self.world.slot)
        before = (index - 1) % len(slots)
        received = team.sendrecv(own, dest=(index + 1) % len(slots), source=before)
        return slots[before], received

    def log_digest(self) -> None:
        """Log a hash of every leaf, so that runs can be compared bit by bit."""
        hashes = {
            leaf.name: sha256(leaf.data)
            for leaf in self.training.framework.leaves(self.training.state)
        }
        text = "\n".join(f"{name} {hashes[name]}" for name in sorted(hashes))
        digest = sha256(memoryview(text.encode()))
        self.log.write("state", step=self.step, slot=self.world.slot, digest=digest)

    # Checkpoints

    def save(self) -> None:
        """Save a checkpoint as the way wants it, in files or in memory, or none."""
        if self.script.way == "rollback-memory" and self.script.survives:
            self.save_in_memory()
        elif self.script.saves_files:
            self.save_in_files()

    def save_in_memory(self) -> None:
        """Keep a copy of the whole state, once all ranks have one."""
        shared = self.training.shared_leaves()
        self.striker.strike(self.step, "save", self.world.slot)
        own = self.training.own_leaves()
        mirrored = self.mirrored
        with self.world.protected():
            self.world.team.Barrier()
        self.in_memory = (self.step, shared, own)
        self.mirrored_in_memory = mirrored

    def save_in_files(self) -> None:
        """Write the checkpoint of this step: the first slot the state, each slot its own part."""
        step, slot = self.step, self.world.slot
        self.checkpoints.wait()
        self.checkpoints.save_own(step, slot, self.training.own_leaves())
        with self.world.protected():
            self.world.team.Barrier()
        if self.world.rank_of(slot) == 0:
            self.checkpoints.remove_old()
            self.checkpoints.save_shared(step, self.training.state, self.strike_when_half)
            if self.striker.is_due(step, "save", slot):
                time.sleep(60)  # the strike comes from a thread that watches the files

    def strike_when_half(self, path: Path) -> None:
        """Have this process killed in the middle of the save that begins now, if it is its turn."""
        step, slot = self.step, self.world.slot
        if self.striker.is_due(step, "save", slot):
            size_bytes = self.training.workload.state_bytes
            when_half_written(path, size_bytes, lambda: self.striker.kill(step, "save", slot))

    def load_files(self, step: int) -> None:
        """Load a checkpoint, the state and what the holder of this slot alone had."""
        self.checkpoints.load(step, self.training.state)
        self.training.assign(dict(self.checkpoints.own(step, self.world.slot)))
        self.training.framework.synchronize(self.training.state)
        self.training.step = step


class Survivor(Member):
    """A member that goes on after a failure of another one."""

    world: SurvivingWorld
    # the processes that may have to be ended, because they hang: their numbers by slot
    processes: dict[int, int]

    def give_up_step(self, step: int, slot: int) -> None:
        """Behave as if the exchange had failed on this rank alone, so that it falls behind."""
        self.striker.note(step, "apart", slot)
        self.mirrored = self.mirrored_after
        self.world.give_up()

    def recover(self, repair: Repair) -> None:
        """Come back after a repair, and begin again where another rank dies meanwhile."""
        while True:
            self.note(repair)
            try:
                self.restore(repair)
                break
            except RankLost:
                self.log.write("detected")
                repair = self.repair()
        self.log.write("restored", step=self.step)

    def repair(self) -> Repair:
        """Repair the world."""
        step, slot = self.step, self.world.slot
        return self.world.repair(step, lambda: self.striker.strike(step, "repair", slot))

    def note(self, repair: Repair) -> None:
        """Log the repaired world, and forget the kills that led to it."""
        self.striker.forget(repair.lost, repair.step)
        self.end_lost(repair)
        self.log.write(
            "repaired", slots=repair.slots, lost=repair.lost, taken=repair.taken, step=repair.step
        )

    def end_lost(self, repair: Repair) -> None:
        """End the processes that held the lost slots, because one that hung must not come back."""
        for slot in repair.lost:
            process = self.processes.pop(slot, None)
            if process is not None and self.world.slot == repair.source:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def restore(self, repair: Repair) -> None:
        """Bring every member to the same step. Raises RankLost if another one dies meanwhile."""
        if self.script.way == "rollback-file":
            self.roll_back_to_file()
        elif self.script.way == "rollback-memory":
            self.roll_back_in_memory(repair)
        else:
            self.take_from_peers(repair)
        if self.script.mirror:
            with self.world.protected():
                mirrored = self.exchange(self.own)
            self.mirrored = mirrored

    def roll_back_to_file(self) -> None:
        """Load the newest complete checkpoint, on which all members agree."""
        self.checkpoints.wait()
        with self.world.protected():
            newest = max(self.checkpoints.steps(), default=0)
            step = self.world.team.bcast(newest)
        if step == 0:
            raise NothingSaved("a rank died before the first checkpoint was complete")
        self.load_files(step)
        self.own = self.training.own_leaves()
        with self.world.protected():
            self.world.team.Barrier()

    def roll_back_in_memory(self, repair: Repair) -> None:
        """Go back to the last checkpoint in memory. Those who have none get it from a member."""
        step, shared, own = self.in_memory
        with self.world.protected():
            step = self.world.team.bcast(step, self.world.rank_of(repair.source))
            shared = self.handed_over(repair, shared)
            own = self.own_of_lost(repair, self.mirrored_in_memory, own)
        self.training.assign(shared)
        self.training.assign(own)
        self.training.framework.synchronize(self.training.state)
        self.training.step = step
        self.own = own or self.training.own_leaves()
        self.in_memory = (step, shared or self.training.shared_leaves(), self.own)
        if self.script.mirror:
            with self.world.protected():
                self.mirrored_in_memory = self.exchange(self.own)

    def take_from_peers(self, repair: Repair) -> None:
        """Get the state of a member that has it. The others go back to where the step began."""
        slot = self.world.slot
        needs_state = slot in repair.need_state
        shared: Leaves = {}
        with self.world.protected():
            if repair.need_state:
                is_source = slot == repair.source
                shared = self.handed_over(
                    repair, self.training.shared_leaves() if is_source else {}
                )
            own = self.own_of_lost(repair, self.mirrored, self.own)
        if slot in repair.behind:
            # It had done everything of the step but the update.
            own = self.own_after
        if needs_state:
            self.training.assign(shared)
        self.training.assign(own)
        self.training.framework.synchronize(self.training.state)
        self.training.step = repair.step
        self.own = own or self.training.own_leaves()

    def handed_over(self, repair: Repair, shared: Leaves) -> Leaves:
        """Return the source's shared leaves on the members that need them; elsewhere `shared`."""
        team, slot = self.world.team, self.world.slot
        if slot == repair.source:
            for receiver in repair.need_state:
                for name, data in shared.items():
                    team.send(name, dest=self.world.rank_of(receiver))
                    team.Send(data, dest=self.world.rank_of(receiver))
                team.send("", dest=self.world.rank_of(receiver))
        if slot not in repair.need_state:
            return shared
        received: Leaves = {}
        sender = self.world.rank_of(repair.source)
        sizes = self.training.leaf_bytes()
        while name := team.recv(source=sender):
            buffer = bytearray(sizes[name])
            team.Recv(buffer, source=sender)
            received[name] = bytes(buffer)
        return received

    def own_of_lost(self, repair: Repair, mirrored: tuple[int, Leaves], own: Leaves) -> Leaves:
        """Return what the dead holder of this slot alone had, from its mirror; elsewhere `own`.

        It is empty where nobody has a copy.
        """
        if not self.script.mirror:
            return own
        copies: dict[int, Leaves] = dict(
            copy for copy in self.world.team.allgather(mirrored) if copy[0] in repair.taken
        )
        return copies.get(self.world.slot, {}) if self.world.slot in repair.taken else own


class NothingSaved(Exception):
    """There is no complete checkpoint to go back to."""


def run(bench: Bench, entries: Entries) -> None:
    """Train by the script of the case, and end this process."""
    _, task = entries[0]
    bench.output.task(entries[0][0])
    script = read_script(script_path(bench.folders.scratch, task.case))
    log = EventLog(Path(script.events), MPI.COMM_WORLD.rank)
    assert bench.workload is not None
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
