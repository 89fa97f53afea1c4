"""One rank of a save and a load by the PyTorch adapter under mpirun: `pytorch_ranks.py METHOD FOLDER`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from test_pytorch import METHODS, digests, make, train, trained

import workloads
from adapters.base import DirectIo, Method, Place, Replicated
from adapters.pytorch.framework import PyTorch
from adapters.pytorch.state import State
from workloads import Role


def main(name: str, folder: Path) -> None:
    """Save behind a training step, load into another state, and compare all that the ranks share."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rendezvous = world.bcast(("127.0.0.1", free_port()) if world.rank == 0 else None)
    framework = PyTorch()
    framework.start(Place(world.rank, world.size, "cpu", folder, DirectIo(False, 0, 0), rendezvous, world.rank))
    print(compare(framework, name, folder), flush=True)
    world.barrier()
    framework.stop()
    world.barrier()
    MPI.Finalize()
    os._exit(0)  # a normal exit aborts now and then, in a thread of the process group


def compare(framework: PyTorch, name: str, folder: Path) -> str:
    """Return "equal", or the names of the leaves that are not."""
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
    check_entries(name, method, state, folder / "checkpoint")
    target = trained(framework, workload, 2, 1)
    method.load(target, folder / "checkpoint")
    method.close()
    loaded = digests(framework, target)
    train(framework, target, 1)  # the ranks can still work together
    return ", ".join(leaf for leaf in shared if loaded[leaf] != saved[leaf]) or "equal"


def check_entries(name: str, method: Method[State], state: State, path: Path) -> None:
    """Fail unless the optimizer lies in the checkpoint once, and in a file from every rank where the method says so."""
    entries = list(method.entries(path))
    optimizer_bytes = sum(tensor.nbytes for leaf, tensor in state.tensors().items() if leaf.startswith("optimizer/"))
    assert sum(entry.raw_bytes for entry in entries if entry.role is Role.OPTIMIZER) == optimizer_bytes
    writers = method.place.world if METHODS[name].get("sharded") else 1
    assert len({entry.file for entry in entries}) == writers


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
