"""One rank of a save and a load by every method of the JAX adapter under mpirun: `jax_ranks.py FOLDER`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from test_jax import METHODS, digests, make, train, trained

import workloads
from adapters.base import DirectIo, Place, Replicated
from adapters.jax.framework import Jax


def main(folder: Path) -> None:
    """Print a line for each method: whether the ranks got back what it covers."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rendezvous = world.bcast(("127.0.0.1", free_port()) if world.rank == 0 else None)
    framework = Jax()
    framework.start(Place(world.rank, world.size, "cpu", folder, DirectIo(False, 0, 0), rendezvous, world.rank))
    for name in METHODS:
        print(f"{name}: {compare(framework, name, folder / name)}\n", end="", flush=True)
    framework.stop()
    world.barrier()
    MPI.Finalize()
    os._exit(0)


def compare(framework: Jax, name: str, path: Path) -> str:
    """Save behind a training step, load into another state; return "equal", or the names of the leaves that are not."""
    from mpi4py import MPI

    workload = workloads.load("resnet50", "small")
    state = trained(framework, workload, 1, 2)
    every_rank = METHODS[name].get("rank_local", False)
    covered = [leaf.name for leaf in framework.leaves(state) if every_rank or leaf.placement == Replicated()]
    saved = digests(framework, state)
    method = make(name, framework)
    method.open(state)
    pending = method.save(state, path)
    framework.gradients(state)
    pending.staged()
    framework.update(state)
    pending.finished()
    MPI.COMM_WORLD.barrier()
    target = trained(framework, workload, 2, 1)
    method.load(target, path)
    method.close()
    loaded = digests(framework, target)
    train(framework, target, 1)  # the ranks can still work together
    return ", ".join(leaf for leaf in covered if loaded[leaf] != saved[leaf]) or "equal"


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    main(Path(sys.argv[1]))
