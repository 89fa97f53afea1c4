"""A rank that trains: its steps, its checkpoints, and the worlds that it trains in."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from adapters.base import Peers
from harness.experiments.recovery.checkpoints import Checkpoints, when_half_written
from harness.experiments.recovery.events import EventLog
from harness.experiments.recovery.training import (
    OWN_ROLES,
    Floats,
    Leaves,
    Striker,
    Training,
    added_over_mpi,
    in_buckets,
)
from harness.worker.verify import sha256


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


class LeavableWorld(TrainingWorld, Protocol):
    """Ranks of which some may leave as planned, without a failure."""

    def go_on_with(self, slots: tuple[int, ...]) -> None:
        """Train with the holders of these slots alone. The others call it too."""


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

    def go_on_with(self, slots: tuple[int, ...]) -> None:
        """Train with the holders of these slots alone. The others call it too."""
        self.team = self.team.Split(0 if self.slot in slots else MPI.UNDEFINED, self.slot)
        self.slots = slots


@dataclass(frozen=True)
class Parts:
    """The parts of a rank. `peers` are the framework's own means to add up; None for MPI."""

    training: Training
    checkpoints: Checkpoints
    log: EventLog
    peers: Peers | None


class Copy(NamedTuple):
    """A neighbour's copy of what the holder of a slot alone has, where there is a mirror."""

    slot: int
    leaves: Leaves


class InMemory(NamedTuple):
    """A checkpoint in memory: the step, the leaves that all ranks share, and this rank's own."""

    step: int
    shared: Leaves
    own: Leaves


class Member:
    """One rank that trains, or a spare that has taken a slot."""

    def __init__(self, world: TrainingWorld, parts: Parts) -> None:
        self.world = world
        self.parts = parts
        self.training = parts.training
        self.script = parts.training.script
        self.checkpoints = parts.checkpoints
        self.log = parts.log
        self.peers = parts.peers
        self.striker = Striker(self.script.kills, parts.log)
        # what this rank alone has, as it was when the present step began
        self.own: Leaves = {}
        # what its neighbour alone has, as it was then
        self.mirrored: Copy | None = None
        # what both will be once all ranks agree that the step is done
        self.own_after: Leaves = {}
        self.mirrored_after: Copy | None = None
        # the numbers of steps after which the state is hashed; None for each
        self.hashed = None if self.script.hashed is None else set(self.script.hashed)
        # the last checkpoint in memory, and what the neighbour alone had then
        self.in_memory = InMemory(0, {}, {})
        self.mirrored_in_memory: Copy | None = None

    @property
    def step(self) -> int:
        """The number of steps that this rank has done."""
        return self.training.step

    def begin(self) -> None:
        """Note the state at the beginning, and show it to the neighbour."""
        if self.script.goes_back_a_step:
            self.own = self.training.own_leaves()
            if self.script.mirror:
                with self.world.protected():
                    mirrored = self.shown_to_neighbour(self.own)
                self.mirrored = mirrored
        if self.script.saves_in_memory:
            self.save_in_memory()

    def take_step(self) -> None:
        """Take one step together, and save a checkpoint when it is time for one."""
        begin_ns = time.monotonic_ns()
        self.agree()
        step, slot = self.step, self.world.slot
        self.log.write("step", step=step)
        with self.world.protected():
            total = self.training.gradients(
                slot, self.world.slots, lambda: self.striker.strike(step, "forward", slot)
            )
            copies_ns = self.copy_own()
            self.striker.strike(step, "before", slot)
            self.striker.strike(step, "stopped", slot)
            self.striker.strike(step, "launcher", slot)
            strike = functools.partial(self.striker.strike, step, "exchange", slot)
            in_buckets(total, self.added, strike)
            self.striker.strike(step, "after", slot)
        if self.striker.is_due(step, "apart", slot):
            self.give_up_step(step, slot)
        self.own, self.mirrored = self.own_after, self.mirrored_after
        loss = self.training.take_step(total, self.world.slots)
        self.log.write(
            "done",
            step=step,
            slot=slot,
            loss=loss,
            step_ns=time.monotonic_ns() - begin_ns,
            agreement_ns=round(self.world.agreement_s * 1e9),
            copies_ns=copies_ns,
        )
        if self.hashed is None or self.step in self.hashed:
            self.log_digest()
        if self.step % self.script.save_every == 0:
            self.save()

    def is_done(self) -> bool:
        """Return whether all steps are done."""
        return self.step >= self.script.steps

    def agree(self) -> None:
        """Agree with the others on who takes the next step, where ranks do that before a step."""

    def added(self, values: Floats) -> Floats:
        """Return the sum over the ranks."""
        if self.peers is None:
            return added_over_mpi(self.world.team, values)
        return np.frombuffer(self.peers.add_up(values.data, self.world.team), np.float32)

    def give_up_step(self, step: int, slot: int) -> None:
        """Behave as if the exchange had failed on this rank alone, so that it falls behind."""
        raise NotImplementedError("only ranks that survive failures can fall behind")

    def copy_own(self) -> int:
        """Note what this rank alone has after the forward passes; return the nanoseconds taken."""
        if not self.script.goes_back_a_step:
            return 0
        begin_ns = time.monotonic_ns()
        self.own_after = self.training.own_leaves()
        copies_ns = time.monotonic_ns() - begin_ns
        if self.script.mirror:
            # A wait for a slower neighbour is no cost of the mirror. The gradient exchange that
            # follows would wait as well.
            self.world.team.Barrier()
            begin_ns = time.monotonic_ns()
            self.mirrored_after = self.shown_to_neighbour(self.own_after)
            copies_ns += time.monotonic_ns() - begin_ns
        return copies_ns

    def shown_to_neighbour(self, own: Leaves) -> Copy | None:
        """Give this rank's own leaves to the next slot, and return those of the one before.

        Without a mirror, do neither.
        """
        if not self.script.mirror:
            return None
        team, slots = self.world.team, self.world.slots
        index = slots.index(self.world.slot)
        before = (index - 1) % len(slots)
        received = team.sendrecv(own, dest=(index + 1) % len(slots), source=before)
        return Copy(slots[before], received)

    def log_digest(self) -> None:
        """Log a hash of every leaf, so that runs can be compared bit by bit.

        `shared` is one of the leaves that must be the same on every rank.
        """
        hashes: Leaves = {}
        shared: Leaves = {}
        for leaf in self.training.framework.leaves(self.training.state):
            hashes[leaf.name] = sha256(leaf.data).encode()
            if leaf.role not in OWN_ROLES:
                shared[leaf.name] = hashes[leaf.name]
        self.log.write(
            "state",
            step=self.step,
            slot=self.world.slot,
            digest=_digest(hashes),
            shared=_digest(shared),
        )
        if self.hashed is not None:
            # Ranks that go back may do this step again. One hash of it is enough.
            self.hashed.discard(self.step)

    # Checkpoints

    def save(self) -> None:
        """Save a checkpoint as the way wants it, in files or in memory, or none."""
        begin_ns = time.monotonic_ns()
        if self.script.saves_in_memory:
            self.save_in_memory()
        elif self.script.saves_files:
            self.save_in_files()
        else:
            return
        self.log.write("checkpoint", step=self.step, save_ns=time.monotonic_ns() - begin_ns)

    def save_in_memory(self) -> None:
        """Keep a copy of the whole state, once all ranks have one."""
        shared = self.training.shared_leaves()
        self.striker.strike(self.step, "save", self.world.slot)
        own = self.training.own_leaves()
        with self.world.protected():
            mirrored = self.shown_to_neighbour(own)
            self.world.team.Barrier()
        self.in_memory = InMemory(self.step, shared, own)
        self.mirrored_in_memory = mirrored
        self.log.write("complete", step=self.step)

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

    def strike_when_half(self, path: Path) -> bool:
        """Have this process killed in the middle of the save that begins now, if it is its turn.

        Return whether it is.
        """
        step, slot = self.step, self.world.slot
        is_doomed = self.striker.is_due(step, "save", slot)
        if is_doomed:
            size_bytes = self.training.workload.state_bytes
            when_half_written(path, size_bytes, lambda: self.striker.kill(step, "save", slot))
        return is_doomed

    def load_files(self, step: int) -> None:
        """Load a checkpoint, the state and what the holder of this slot alone had."""
        self.checkpoints.load(step, self.training.state)
        self.training.assign(self.checkpoints.own(step, self.world.slot))
        self.training.framework.synchronize(self.training.state)
        self.training.step = step


def _digest(hashes: Leaves) -> str:
    """Return one hash of the hashes of leaves."""
    lines = [name.encode() + b" " + hashes[name] for name in sorted(hashes)]
    return sha256(memoryview(b"\n".join(lines)))
