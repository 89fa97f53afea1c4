"""What one rank of the TensorFlow adapter checks under mpirun: `tensorflow_ranks.py CHECK ARGUMENT...`. Prints what is wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from mpi4py import MPI
from test_tensorflow import METHODS, covered, digests, make, same, train, trained

import workloads
from adapters.base import DirectIo, Place, Replicated
from adapters.tensorflow.framework import TensorFlow
from adapters.tensorflow.state import State
from workloads import Role

WORLD = MPI.COMM_WORLD
CHECKED_STEPS = (1, 10)
# Of float32 sums in another order, about ten times what they come to. Adam divides a gradient by
# its own size in the first steps: where it is next to nothing, so is what two orders have in
# common, and a weight is off by a share of the learning rate.
SLOT_TOLERANCE = 1e-4  # of the largest number in the slot
WEIGHT_TOLERANCE = 5e-2  # of the learning rate


def training(*strategies: str) -> Iterator[str]:
    """Train by every strategy, and compare the ranks with each other, with a second time and with a world of one."""
    for strategy in strategies:
        framework = started(strategy)
        for fault in (*unlike_ranks(framework), *unlike_one_rank(framework)):
            yield f"{strategy}: {fault}"
        framework.stop()


def unlike_ranks(framework: TensorFlow) -> Iterator[str]:
    """Yield what the ranks should share after three steps and do not, and what another training makes different."""
    workload = workloads.load("resnet50", "small", dropout=0.1)
    state = trained(framework, workload, 1, 3)
    found = digests(framework, state)
    ranks = WORLD.allgather({name: found[name] for name in shared(framework, state)})
    yield from (
        f"{name} is not the same on all ranks"
        for name in ranks[0]
        if len({rank[name] for rank in ranks}) > 1
    )
    again = digests(framework, trained(framework, workload, 1, 3))
    yield from (
        f"{name} is another one when trained again" for name in found.keys() - same(found, again)
    )


def unlike_one_rank(framework: TensorFlow) -> Iterator[str]:
    """Yield what differs from the training of one rank with the whole batch."""
    alone = started("", world=1)
    for name in ("candle-mlp", "llm-slice"):
        workload = workloads.load(name, "small", dropout=0.0)
        state, reference = framework.build(workload, 1), alone.build(workload, 1)
        for steps, more in zip(CHECKED_STEPS, np.diff((0, *CHECKED_STEPS)), strict=True):
            train(framework, state, more)
            train(alone, reference, more)
            for leaf, difference in differences(state, reference):
                if difference > 1:
                    yield f"{name}: {leaf} is {difference:.3g} times the tolerance off after {steps} steps"


def differences(state: State, reference: State) -> Iterator[tuple[str, float]]:
    """Yield the largest difference in every shared leaf, in units of its tolerance; counters have to be equal."""
    tensors = reference.tensors()
    for name, tensor in state.tensors().items():
        array, expected = tensor.canonical(), tensors[name].canonical()
        if name.startswith("weights/"):
            tolerance = WEIGHT_TOLERANCE * state.workload.optimizer.learning_rate
        elif name.startswith("optimizer/exp_avg"):
            tolerance = SLOT_TOLERANCE * float(np.abs(expected).max())
        elif name.startswith("rng/"):
            continue
        else:
            tolerance = 0.5
        yield name, float(np.abs(array - expected).max()) / tolerance


def methods(folder: str, *names: str) -> Iterator[str]:
    """Save by every method behind a training step, load into another state, and see that it has what the method declares."""
    framework = started("mpi-flat")
    workload = workloads.load("resnet50", "small", dropout=0.1)
    state, target = trained(framework, workload, 1, 2), trained(framework, workload, 2, 1)
    for name in names:
        # two steps between two saves: the target, one behind the last one, is at no other's
        train(framework, state, 1)
        train(framework, target, 1)
        for fault in saved_and_loaded(framework, name, state, target, Path(folder) / name):
            yield f"{name}: {fault}"
    framework.stop()


def saved_and_loaded(
    framework: TensorFlow, name: str, state: State, target: State, path: Path
) -> Iterator[str]:
    """Yield what is wrong with one method's save and load.

    Rank 0 keeps the checkpoint with what is in it for all ranks.
    """
    saved = digests(framework, state)
    method = make(name, framework)
    method.open(state)
    WORLD.barrier()
    pending = method.save(state, path)
    framework.gradients(state)
    pending.staged()
    framework.update(state)
    pending.finished()
    WORLD.barrier()
    method.load(target, path)
    method.close()
    view = saved if METHODS[name].get("rank_local") else WORLD.bcast(saved)
    restored = same(view, digests(framework, target))
    expected = covered(name, framework, state)
    yield from (f"{leaf} did not come back" for leaf in sorted(expected - restored))
    yield from (f"{leaf} came back, which is not declared" for leaf in sorted(restored - expected))
    if WORLD.rank == 0:
        kept = {leaf: saved[leaf] for leaf in shared(framework, state) & expected}
        path.with_suffix(".json").write_text(json.dumps(kept))


def reshard(folder: str, *names: str) -> Iterator[str]:
    """Load what another number of ranks has saved."""
    framework = started("mpi-flat" if WORLD.size > 1 else "")
    state = trained(framework, workloads.load("resnet50", "small", dropout=0.1), 3, 1)
    for name in names:
        train(framework, state, 1)
        method = make(name, framework)
        method.open(state)
        method.load(state, Path(folder) / name)
        method.close()
        saved = json.loads((Path(folder) / f"{name}.json").read_text())
        yield from (
            f"{name}: {leaf} did not come back"
            for leaf in saved.keys() - same(saved, digests(framework, state))
        )
    framework.stop()


def shared(framework: TensorFlow, state: State) -> set[str]:
    """Return the names of the leaves that all ranks have in common; in a world of one, those that more ranks would have."""
    own = (Role.BUFFER, Role.RNG)
    return {
        leaf.name
        for leaf in framework.leaves(state)
        if leaf.placement == Replicated() and leaf.role not in own
    }


def started(strategy: str, world: int = WORLD.size) -> TensorFlow:
    """Return a framework that has joined the ranks, or that is alone."""
    framework = TensorFlow()
    rank = WORLD.rank if world > 1 else 0
    framework.start(Place(rank, world, "cpu", Path(), DirectIo(False, 0, 0), None, rank, strategy))
    return framework


CHECKS: dict[str, Callable[..., Iterator[str]]] = {
    check.__name__: check for check in (training, methods, reshard)
}

if __name__ == "__main__":
    print("; ".join(CHECKS[sys.argv[1]](*sys.argv[2:])) or "as declared", flush=True)
    WORLD.barrier()
    MPI.Finalize()
    os._exit(0)
