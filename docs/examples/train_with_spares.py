"""A training that goes on when a rank is killed, because a spare takes its slot.

    export PYTHONPATH=.
    mpirun --with-ft ulfm --map-by :OVERSUBSCRIBE -n 4 python docs/examples/train_with_spares.py

Three ranks train and one waits. Kill one of them meanwhile, and the weights end the same. After a
second death no spare is left. Those that live go on with their own batches, so the weights differ.
"""

import os
import time
import traceback

import numpy
from mpi4py import MPI

from harness.surviving import RankLost, SurvivingWorld, end_job

MEMBERS = 3
STEPS = 100


def gradients_of(step: int, slot: int) -> numpy.ndarray:
    """Stand for the forward and the backward pass of a model."""
    time.sleep(0.02)
    return numpy.random.default_rng([step, slot]).integers(10, size=1000).astype(float)


def main() -> None:
    """Train as a member, or wait as a spare."""
    world = SurvivingWorld(MPI.COMM_WORLD, members=MEMBERS)
    print(f"process {os.getpid()} {'waits' if world.is_spare else 'trains'}", flush=True)
    weights = numpy.zeros(1000)
    step = 0
    repair = None
    if world.is_spare:
        repair = world.wait(pause_s=0.02)
        if repair is None:
            os._exit(0)  # the others are done
    while step < STEPS or repair is not None:
        if repair is None:
            gradients = gradients_of(step, world.slot)
        try:
            with world.protected():
                if repair is None:
                    world.team.Allreduce(MPI.IN_PLACE, gradients)
                else:
                    # After a repair, the state of one rank goes to all, and so to the spare.
                    world.team.Bcast(weights, root=world.rank_of(repair.source))
        except RankLost:
            repair = world.repair(step)
            continue
        if repair is not None:
            step, repair = repair.step, None
        else:
            weights -= gradients
            step += 1
    print(f"slot {world.slot}: {step} steps, the weights add up to {weights.sum():.0f}")
    world.leave()


try:
    main()
except BaseException:
    traceback.print_exc()
    # The others would wait for a process that ends by an error.
    end_job()
