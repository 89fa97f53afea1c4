"""The ranks of one job, as the worker needs them: a barrier, an agreement, a way to end together."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class NotShared(Exception):
    """The ranks do not see one scratch directory."""


class World:
    """A world of one rank, which needs no MPI. `local_rank` counts the ranks of one node."""

    rank = 0
    size = 1
    local_rank = 0
    ranks_here = 1

    def __init__(self) -> None:
        self.node = node_name()

    def barrier(self) -> None:
        """Return when every rank has come here."""

    def maximum(self, value: int) -> int:
        """Return the largest of the ranks' values, on every rank."""
        return value

    def total(self, value: int) -> int:
        """Return the sum of the ranks' values, on every rank."""
        return value

    def gather(self, value: T) -> list[T] | None:
        """Return the ranks' values on rank 0, None on the others."""
        return [value]

    def agreed(self, value: T) -> T:
        """Return rank 0's value, on every rank."""
        return value

    def rendezvous(self) -> tuple[str, int] | None:
        """Return a host and free port of rank 0 for a framework's own process group; None in a world of one."""
        return None

    def require_shared(self, folder: Path) -> None:
        """Raise NotShared, on every rank, unless all of them see in `folder` what rank 0 puts there."""

    def fail(self) -> None:
        """End the other ranks after a failure on this one: they wait in a barrier that it will not reach."""

    def leave(self) -> None:
        """End this process once every rank is done."""


class MpiWorld(World):
    """The ranks that an MPI launcher started."""

    def __init__(self) -> None:
        # Not at the module's top: importing mpi4py starts MPI, also in the children of a method
        # that forks.
        from mpi4py import MPI

        super().__init__()
        self._mpi: Any = MPI
        self._world = MPI.COMM_WORLD
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()
        # Open MPI splits by its daemons, one a node, so two Slurm nodes stay two even where they
        # are one machine.
        node = self._world.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.ranks_here = node.Get_rank(), node.Get_size()

    def barrier(self) -> None:
        self._world.Barrier()

    def maximum(self, value: int) -> int:
        return int(self._world.allreduce(value, op=self._mpi.MAX))

    def total(self, value: int) -> int:
        return int(self._world.allreduce(value, op=self._mpi.SUM))

    def gather(self, value: T) -> list[T] | None:
        found: list[T] | None = self._world.gather(value)
        return found

    def agreed(self, value: T) -> T:
        found: T = self._world.bcast(value)
        return found

    def rendezvous(self) -> tuple[str, int] | None:
        on_one_host = len(set(self._world.allgather(socket.gethostname()))) == 1
        address = (_reachable_address(on_one_host), _free_port()) if self.rank == 0 else None
        found: tuple[str, int] = self._world.bcast(address)
        return found

    def require_shared(self, folder: Path) -> None:
        # A new name for every look: a network file system remembers for a while which names it did
        # not find.
        probe = folder / self._world.bcast(f"shared-{uuid.uuid4().hex}" if self.rank == 0 else None)
        if self.rank == 0:
            probe.touch()
        self._world.Barrier()
        blind = sorted(
            {node for node in self._world.allgather(None if probe.exists() else self.node) if node}
        )
        if self.rank == 0:
            probe.unlink()
        if blind:
            named = ", ".join(blind[:4])
            raise NotShared(
                f"{named} does not see scratch directory {folder}: ranks on several nodes need one that all share"
            )

    def fail(self) -> None:
        self._world.Abort(1)

    def leave(self) -> None:
        self._world.Barrier()
        self._mpi.Finalize()
        # Communication threads of a framework that are still joinable abort a normal exit now and
        # then.
        os._exit(0)


def join(size: int) -> World:
    """Return the world that the job asks for; RuntimeError when the launcher started another number of ranks."""
    if size == 1:
        return World()
    world = MpiWorld()
    if world.size != size:
        raise RuntimeError(f"the job is for {size} ranks and the launcher started {world.size}")
    return world


def node_name() -> str:
    """Slurm's name of this node, else the host's own: daemons of several Slurm nodes can share a host."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _reachable_address(on_one_host: bool) -> str:
    """This host's name where it resolves, else loopback, which other hosts cannot reach."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        if on_one_host:
            return "127.0.0.1"
        raise RuntimeError(
            f"the name of rank 0's host, {name}, does not resolve: ranks on other hosts cannot reach it"
        ) from error
    return name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port
