"""One rank of a save and a load by the Chainer adapter under mpirun: `chainer_ranks.py METHOD FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from test_chainer import digests, make, train, trained

import workloads
from adapters.base import DirectIo, Place, Replicated
from adapters.chainer.framework import Chainer


def main(name: str, folder: Path) -> None:
    """Save behind a training step, load into another state, and compare all that the ranks share."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    framework = Chainer()
    framework.start(Place(world.rank, world.size, "cpu", folder, DirectIo(False, 0, 0), None, world.rank))
    print(compare(framework, name, folder), flush=True)
    world.barrier()
    framework.stop()
    MPI.Finalize()
    os._exit(0)


def compare(framework: Chainer, name: str, folder: Path) -> str:
    """Return "equal", or the names of the leaves that are not: between saved and loaded, or between the ranks."""
    from mpi4py import MPI

    workload = workloads.load("resnet50", "small")
    state = trained(framework, workload, 1, 2)
    shared = [leaf.name for leaf in framework.leaves(state) if leaf.placement == Replicated()]
    saved = digests(framework, state)
    method = make(name, framework)
    method.open(state)
    pending = method.save(state, folder / "checkpoint")
    framework.gradients(state)
    pending.staged()
    framework.update(state)
    pending.finished()
    MPI.COMM_WORLD.barrier()
    target = trained(framework, workload, 2, 1)
    method.load(target, folder / "checkpoint")
    method.close()
    loaded = digests(framework, target)
    first = MPI.COMM_WORLD.bcast(saved)
    train(framework, target, 1)  # the ranks can still work together
    return ", ".join(leaf for leaf in shared if not first[leaf] == saved[leaf] == loaded[leaf]) or "equal"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
