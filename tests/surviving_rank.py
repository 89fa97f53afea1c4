"""One rank of a job that survives: it adds up numbers in steps, and dies where it is told to.

Arguments: the number of members, the number of steps, what takes the slots of the dead, and deaths
such as `1:8`, by which rank 1 dies before its eighth call of MPI. By `2:+8`, looks for a message do
not count, because nobody knows how often a spare looks. A spawned process has the rank -1 there,
and dies at once. The slots are taken by `spares`, by `late-spares` that look only once a second, or
by processes that a repair starts (`spawn`). Each rank prints its slot and its sum at the end.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np
from mpi4py import MPI

from harness.surviving import RankLost, SurvivingWorld

BEGAN = "began"  # is printed by a rank that has its world
DIES = "dies"  # is printed by a rank that is about to kill itself
ITEMS = 12  # of a step, divided over the members


class Counted:
    """A communicator whose calls are counted, and that ends its process before one of them."""

    calls = 0
    dies_before = 0
    looks_count = True

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __eq__(self, other: object) -> bool:
        return bool(self._comm == other)

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._comm, name)
        if not callable(value):
            return value

        def counted(*arguments: Any, **named: Any) -> Any:
            if Counted.looks_count or name != "Iprobe":
                Counted.calls += 1
                if Counted.calls == Counted.dies_before:
                    print(DIES, flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
            result = value(*arguments, **named)
            return Counted(result) if isinstance(result, MPI.Comm) else result

        return counted


def items_of(slot: int, slots: tuple[int, ...]) -> range:
    """Return the items of a slot: a contiguous run of them."""
    index = slots.index(slot)
    return range(ITEMS * index // len(slots), ITEMS * (index + 1) // len(slots))


def main(members: int, steps: int, newcomers: str, deaths: dict[int, str]) -> None:
    spawns = newcomers == "spawn"
    spawn = [sys.executable, "-m", "tests.surviving_rank", *sys.argv[1:]] if spawns else []
    is_spawned = MPI.Comm.Get_parent() != MPI.COMM_NULL
    rank = -1 if is_spawned else MPI.COMM_WORLD.Get_rank()
    SurvivingWorld.spawn_limit_s = 5.0
    death = deaths.get(rank, "0")
    Counted.dies_before = int(death)
    Counted.looks_count = not death.startswith("+")
    step, total = 0, 0
    try:
        if is_spawned:
            # Nothing of its own is counted but what it does before it takes its slot.
            if Counted.dies_before:
                os.kill(os.getpid(), signal.SIGKILL)
            world, repair = SurvivingWorld.take_over(spawn)
            step, total = taken_over(world, repair, step, total)
        else:
            world = SurvivingWorld(Counted(MPI.COMM_WORLD), members, spawn=spawn)
            print(BEGAN, flush=True)
    except RankLost as error:
        print(error, flush=True)
        # A usual exit calls MPI_Finalize, which can hang after a failure. So can mpirun after any
        # other exit status.
        os._exit(0)
    if world.is_spare:
        repair = world.wait(pause_s=1.0 if newcomers == "late-spares" else 0.01)
        if repair is None:
            print("a spare is not needed any more", flush=True)
            os._exit(0)
        step, total = taken_over(world, repair, step, total)
    while step < steps:
        try:
            with world.protected():
                own = sum(step * 100 + item for item in items_of(world.slot, world.slots))
                summed = np.zeros(1, dtype=np.int64)
                world.team.Allreduce(np.array([own], dtype=np.int64), summed)
        except RankLost:
            repair = world.repair(step)
            step, total = taken_over(world, repair, step, total)
            continue
        total += int(summed[0])
        step += 1
    # Nothing but `leave` writes this out, because the line does not end.
    print(f"done slot {world.slot} of {len(world.slots)}: {total} calls {Counted.calls}", end=" ")
    world.leave()


def taken_over(world: SurvivingWorld, repair: Any, step: int, total: int) -> tuple[int, int]:
    """Return step and sum of the member that is ahead, also where another one dies meanwhile.

    `step` and `total` are those of this process, which a spare has not got yet.
    """
    while True:
        try:
            with world.protected():
                newest = world.team.bcast(total, world.rank_of(repair.source))
            return repair.step, newest
        except RankLost:
            repair = world.repair(step)


if __name__ == "__main__":
    told = [pair.split(":") for pair in sys.argv[4:]]
    dying = {int(rank): call for rank, call in told}
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], dying)
