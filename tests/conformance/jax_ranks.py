"""One rank of a save and a load by every method of the JAX adapter under mpirun: `jax_ranks.py FOLDER`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from test_jax import METHODS, check_files, digests, make, role_bytes, train, trained

import workloads
from adapters.base import DirectIo, Method, Place, Replicated
from adapters.jax.framework import Jax
from adapters.jax.state import State
from workloads import Role


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
    wrong = wrong_entries(framework, name, method, state, path)
    target = trained(framework, workload, 2, 1)
    method.load(target, path)
    method.close()
    loaded = digests(framework, target)
    train(framework, target, 1)  # the ranks can still work together
    return ", ".join([*wrong, *(leaf for leaf in covered if loaded[leaf] != saved[leaf])]) or "equal"


def wrong_entries(framework: Jax, name: str, method: Method[State], state: State, path: Path) -> list[str]:
    """Return the roles of which the entries have other bytes than the ranks, which have batch-norm statistics of their own."""
    entries = list(method.entries(path))
    check_files(path, entries)
    expected = role_bytes(framework, state)
    if METHODS[name].get("rank_local", False):
        expected[Role.BUFFER] *= framework.place.world
    found = {role: sum(entry.raw_bytes for entry in entries if entry.role is role) for role in Role}
    return [f"entries of {role}" for role in (Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER) if found[role] != expected[role]]


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    main(Path(sys.argv[1]))
