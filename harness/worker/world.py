"""The ranks of one job as the worker needs them: a barrier, an agreement, a common end."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import uuid
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from harness.wire.nodes import node_name

SPAWNED = "spawned"
"""The worker's last argument in a process that ranks have spawned, and not the driver."""

FIRST_PARENT = os.getppid()
"""The number of the process that started this one, which may have died since."""

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

    def any(self, value: bool) -> bool:
        """Return whether the value is true on any rank, on every rank."""
        return bool(self.maximum(int(value)))

    def total(self, value: int) -> int:
        """Return the sum of the ranks' values, on every rank."""
        return value

    def gather(self, value: T) -> list[T] | None:
        """Return the ranks' values on rank 0, None on the others."""
        return [value]

    def all_gathered(self, value: T) -> list[T]:
        """Return the ranks' values, on every rank."""
        return [value]

    def agreed(self, value: T) -> T:
        """Return rank 0's value, on every rank."""
        return value

    def rendezvous(self) -> tuple[str, int] | None:
        """Return a host and a free port of rank 0 for a framework's own process group.

        Return None in a world of one.
        """
        return None

    def require_shared(self, folder: Path) -> None:
        """Raise NotShared on every rank unless all of them see what rank 0 puts in `folder`."""

    def fail(self) -> None:
        """End the other ranks after a failure on this one, because a barrier holds them."""

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
        # Open MPI splits by its daemons, one a node. So two Slurm nodes stay two even where they
        # are one machine.
        ranks_of_node = self._world.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = ranks_of_node.Get_rank()
        self.ranks_here = ranks_of_node.Get_size()

    def barrier(self) -> None:
        self._world.Barrier()

    def maximum(self, value: int) -> int:
        return int(self._world.allreduce(value, op=self._mpi.MAX))

    def total(self, value: int) -> int:
        return int(self._world.allreduce(value, op=self._mpi.SUM))

    def gather(self, value: T) -> list[T] | None:
        values: list[T] | None = self._world.gather(value)
        return values

    def all_gathered(self, value: T) -> list[T]:
        values: list[T] = self._world.allgather(value)
        return values

    def agreed(self, value: T) -> T:
        value_of_rank_0: T = self._world.bcast(value)
        return value_of_rank_0

    def rendezvous(self) -> tuple[str, int] | None:
        hosts = set(self._world.allgather(socket.gethostname()))
        address = None
        if self.rank == 0:
            address = (_reachable_address(on_one_host=len(hosts) == 1), _free_port())
        agreed: tuple[str, int] = self._world.bcast(address)
        return agreed

    def require_shared(self, folder: Path) -> None:
        # Each call needs a new name, because a network file system remembers for a while which
        # names it did not find.
        name = self.agreed(f"shared-{uuid.uuid4().hex}")
        probe = folder / name
        if self.rank == 0:
            probe.touch()
        self._world.Barrier()
        nodes = self._world.allgather("" if probe.exists() else self.node)
        blind_nodes = sorted({node for node in nodes if node})
        if self.rank == 0:
            probe.unlink()
        if blind_nodes:
            named = ", ".join(blind_nodes[:4])
            raise NotShared(
                f"{named} does not see scratch directory {folder}; "
                "ranks on several nodes need a directory that all of them share"
            )

    def fail(self) -> None:
        self._world.Abort(1)

    def leave(self) -> None:
        self._world.Barrier()
        self._mpi.Finalize()
        end_now()


class SeparateWorld(World):
    """The ranks that a framework's own launcher started. They do not meet here.

    Such launchers tell each rank its number and where all meet in these variables of the
    environment.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.ranks_here = int(os.environ["LOCAL_WORLD_SIZE"])

    def rendezvous(self) -> tuple[str, int] | None:
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def leave(self) -> None:
        end_now()


def end_now() -> NoReturn:
    """End this process without waiting for threads of a framework, which could abort the exit."""
    # What was printed goes to a file, and would be lost in its buffer. The disk may be full.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)


def join(size: int) -> World:
    """Return the world that the job asks for.

    Raise RuntimeError when the launcher started another number of ranks.
    """
    if size == 1:
        return World()
    world = MpiWorld()
    if world.size != size:
        raise RuntimeError(f"the job is for {size} ranks, but the launcher started {world.size}")
    return world


def _reachable_address(on_one_host: bool) -> str:
    """Return this host's name where it resolves.

    Else return the loopback address, or raise RuntimeError where ranks are on other hosts.
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        if on_one_host:
            return "127.0.0.1"
        raise RuntimeError(
            f"the name of rank 0's host, {name}, does not resolve, so ranks on other hosts cannot "
            "reach it; add it to DNS or to /etc/hosts"
        ) from error
    return name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port
