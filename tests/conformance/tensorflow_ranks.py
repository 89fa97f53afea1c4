"""One rank of a save and a load by the TensorFlow adapter under mpirun: `tensorflow_ranks.py METHOD FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from test_tensorflow import covered, digests, make, train, trained

import workloads
from adapters.base import DirectIo, Place, Replicated
from adapters.tensorflow.framework import TensorFlow


def main(name: str, folder: Path) -> None:
    """Save behind a training step, load into another state, and compare all that the ranks share."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    framework = TensorFlow()
    place = Place(world.rank, world.size, "cpu", folder, DirectIo(False, 0, 0), ("127.0.0.1", 0), world.rank)
    framework.start(place)
    print(compare(framework, name, folder), flush=True)
    framework.stop()
    world.barrier()
    MPI.Finalize()
    os._exit(0)


def compare(framework: TensorFlow, name: str, folder: Path) -> str:
    """Return "equal", or the names of the leaves that are not."""
    from mpi4py import MPI

    workload = workloads.load("resnet50", "small")
    state = trained(framework, workload, 1, 2)
    shared = {leaf.name for leaf in framework.leaves(state) if leaf.placement == Replicated()}
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
    train(framework, target, 1)  # the ranks can still work together
    after = digests(framework, target)
    alike = MPI.COMM_WORLD.allgather({leaf: after[leaf] for leaf in shared})
    wrong = {leaf for leaf in shared & covered(name, framework, state) if loaded[leaf] != saved[leaf]}
    wrong |= {leaf for leaf in shared if len({rank[leaf] for rank in alike}) > 1}
    return ", ".join(sorted(wrong)) or "equal"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
