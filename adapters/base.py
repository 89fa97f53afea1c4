"""The contract between the harness and a framework's checkpoint methods.

Each folder has one `Framework`, which makes, trains and inspects states, and several `Method`s,
which save and load them. A `Store` keeps a series of checkpoints, and restores the newest. Clocks,
digests and cache state have no part in the contract. They belong to the worker, so that no mistake
of a method changes how the method is measured. This is no protection against malice: a method runs
in the worker's process, and could patch it.

This module imports the standard library and `workloads` alone.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from workloads import Batch, Role, Workload

ALL_ROLES: frozenset[Role] = frozenset(Role)


class Coverage(StrEnum):
    """The part of the state that a method saves and restores."""

    WEIGHTS = "weights"
    WEIGHTS_AND_OPTIMIZER = "weights+optimizer"
    FULL = "full"

    @property
    def roles(self) -> frozenset[Role]:
        """Return the roles of the leaves that a method of this coverage restores."""
        weights = frozenset({Role.WEIGHT, Role.BUFFER})
        if self is Coverage.WEIGHTS:
            return weights
        if self is Coverage.WEIGHTS_AND_OPTIMIZER:
            return weights | {Role.OPTIMIZER}
        return ALL_ROLES


@dataclass(frozen=True)
class Replicated:
    """The leaf has the same bytes on every rank."""


@dataclass(frozen=True)
class RankLocal:
    """The leaf belongs to this rank alone, such as a random generator or batch-norm statistics."""


@dataclass(frozen=True)
class Shard:
    """The leaf is a part of a larger tensor. Shape and offset count elements."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]


Placement = Replicated | RankLocal | Shard


@dataclass(frozen=True)
class Leaf:
    """One tensor of the state under the canonical name that the workload gives it.

    `data` holds its bytes on the host in the workload's layout, C-contiguous, with format "B" and
    one dimension. `dtype` is the name in numpy, or "bfloat16", which numpy lacks.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    placement: Placement = Replicated()


@dataclass(frozen=True)
class DirectIo:
    """The requests with which direct I/O is fastest in a run's directory.

    A run finds them once. `direct` is false where the directory takes no direct I/O.
    """

    direct: bool
    block_bytes: int
    depth: int  # requests in flight


@dataclass(frozen=True)
class Place:
    """The place of a process: its rank, its device, and the folders that it may use."""

    rank: int
    world: int
    device: str  # "cpu" or "cuda"
    # a folder for sockets, stagers and the like, which the worker removes
    temporary: Path
    io: DirectIo
    # host and port at which the ranks meet; None in a world of one rank
    rendezvous: tuple[str, int] | None = None
    # the rank among the ranks of its node
    local_rank: int = 0
    # the name in adapter.toml of how the ranks train together; empty in a world of one rank
    strategy: str = ""
    # a folder in shared memory for checkpoints that outlive the process
    memory: Path | None = None
    # a folder for compiled programs, which the run's other processes find; None for none
    programs: Path | None = None


def own_gpu(place: Place, gpus: int) -> int:
    """Return the number of the GPU that a rank uses on a node with `gpus` GPUs.

    Raises RuntimeError if there are fewer GPUs than ranks, because NCCL needs one for each rank.
    """
    if place.local_rank >= gpus:
        raise RuntimeError(
            f"rank {place.rank} needs a GPU of its own, but it is number {place.local_rank + 1} of "
            f"the ranks on a node that has {gpus}; start at most {gpus} ranks on each node"
        )
    return place.local_rank


@dataclass(frozen=True)
class Entry:
    """A part of a checkpoint that has a name in the checkpoint's format. Mostly it is a tensor.

    `file` is a path inside the checkpoint, or the name of a checkpoint that is one file. `role` is
    None for a part that describes other parts. `stored_bytes` is the size in the file, and
    `raw_bytes` the size without the format's compression.
    """

    file: str
    name: str
    role: Role | None
    stored_bytes: int
    raw_bytes: int


StateT = TypeVar("StateT")


class UnusableModel(ValueError):
    """A model of the user's own that cannot be measured, and why."""


class Framework(ABC, Generic[StateT]):
    """One framework, which makes, trains and inspects training states."""

    def start(self, place: Place) -> None:
        """Choose the device, make the run deterministic and join the process group."""
        self.place = place

    @abstractmethod
    def build(self, workload: Workload, seed: int) -> StateT:
        """Return model, optimizer, random generators and position in the data, made from `seed`."""

    def adopt(self, make: Callable[[], Any], seed: int) -> StateT:
        """Return the state of a model of the user's own after its first step.

        `make` returns the model and all that trains it; docs/own-models.md says in which form. The
        harness has seeded Python's and numpy's random generators, and a framework seeds its own
        before it is called. Most optimizers have no state before the first step, and a load needs
        one.

        Raises UnusableModel for what cannot be measured.
        """
        raise UnusableModel(f"{type(self).__name__} takes no models of the user's own")

    @abstractmethod
    def gradients(self, state: StateT) -> None:
        """Run the forward and the backward pass on the batch at the state's position.

        This may change buffers and random generators, but never weights.
        """

    @abstractmethod
    def update(self, state: StateT) -> None:
        """Average the gradients over the ranks and take a step of the optimizer.

        The position in the data advances by one batch.
        """

    def gradients_of(self, state: StateT, batch: Batch) -> memoryview:
        """Return this process's own gradients of a batch, which no other rank takes part in.

        They are those of all parameters one after the other, float32, on the host, with format
        "f" and one dimension. The caller may change them. As in `gradients`, buffers and random
        generators may change.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot hand out gradients")

    def update_with(self, state: StateT, gradients: memoryview) -> None:
        """Take a step of the optimizer with gradients in the layout of `gradients_of`.

        The position in the data advances by one batch.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot take gradients")

    @abstractmethod
    def loss(self, state: StateT) -> float:
        """Return the loss of this rank's batch in the last call of `gradients`."""

    @abstractmethod
    def leaves(self, state: StateT, roles: Collection[Role] = ALL_ROLES) -> Iterator[Leaf]:
        """Yield every tensor of some roles without which training would not go on bit by bit.

        A leaf's `data` need not stay valid after the next leaf has been yielded. What has another
        role is not brought to the host, because that can take as long as a step.
        """

    def assign(self, state: StateT, leaves: Mapping[str, memoryview]) -> None:
        """Set the named leaves to bytes in the layout of `leaves`. The others stay as they are."""
        raise NotImplementedError(f"{type(self).__name__} cannot assign leaves")

    def settings(self, state: StateT) -> Sequence[MutableMapping[str, Any]]:
        """Return the settings of the optimizers, such as the learning rate, that are no leaves.

        They are what the framework's own state dictionaries hold besides tensors. A caller may
        change the values. The default is for a framework that has no such settings.
        """
        return ()

    def synchronize(self, state: StateT) -> None:
        """Wait until the device has finished its work on a state."""

    def copy_to_host(self, state: StateT) -> int:
        """Copy the whole state to the host as fast as the framework can.

        Returns the number of bytes, or 0 if the state is on the host already.
        """
        return 0

    def watch_device_memory(self) -> Callable[[], int] | None:
        """Begin to watch how much of the device's memory this process uses.

        The function that this returns returns the most bytes in use since then, less the bytes in
        use at the beginning. Return None where the framework cannot tell, or has no device.
        """
        return None

    def stop(self) -> None:
        """Leave the process group."""

    @staticmethod
    def unsupported(workload: Workload | None, device: str) -> str | None:
        """Return why this framework cannot hold the workload on the device, or None if it can.

        The workload is None for a model of the user's own. The worker asks before `start`, so this
        must not start a device.
        """
        return None


class Pending:
    """A save in progress. An object of this base class had finished when `save` returned."""

    def staged(self) -> None:
        """Wait until the state may change again.

        Raises the error of a save that has failed.
        """

    def finished(self) -> None:
        """Wait until the method calls the checkpoint complete.

        Raises the error of a save that has failed.
        """


class Method(ABC, Generic[StateT]):
    """One mechanism that saves and loads states.

    `save`, its `Pending` and `load` are timed. `open` is timed by itself, and counts in none of
    them. `entries` and `close` are not timed.
    """

    def __init__(self, place: Place, framework: Framework[StateT], options: dict[str, Any]) -> None:
        """Take the place, the framework that made the states, and the options in adapter.toml."""
        self.place = place
        self.framework = framework
        self.options = options

    def open(self, state: StateT) -> None:
        """Make process groups, stagers and communicators.

        The states of later saves and loads have the same shapes as `state`.
        """

    @abstractmethod
    def save(self, state: StateT, path: Path) -> Pending:
        """Write `state` to `path`, which does not exist. Its parent is an empty directory."""

    @abstractmethod
    def load(self, state: StateT, path: Path) -> None:
        """Restore the leaves that the method covers into `state`.

        On return, `state` holds them in its own memory, and everything has been read.
        """

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the parts of a checkpoint that its format names.

        The default is for a format that names none.
        """
        return iter(())

    def close(self) -> None:
        """Give back the resources that `open` made."""


class PeerLost(Exception):
    """A rank has died, as the framework's own means to add up have noticed."""


class Peers(ABC):
    """The ranks of a job that add up by the framework's own means, and not over MPI.

    It is made before the framework starts, because a framework joins its ranks before it looks for
    devices.
    """

    over_mpi = False
    """The ranks meet in a communicator of MPI, which is made anew where some of them die."""

    def __init__(self, place: Place) -> None:
        """Join the ranks that meet at `place.rendezvous`."""
        self.place = place

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Let the ranks exchange something in a block. Raises PeerLost if one of them dies in it.

        Ranks that can go on without the dead all leave the block in the same way.
        """
        yield

    @abstractmethod
    def add_up(self, values: memoryview, team: Any) -> memoryview:
        """Return the sum over the ranks of float32 values, with format "f" and one dimension.

        `team` is the communicator in which ranks meet `over_mpi`. Raises PeerLost.
        """

    def survivors(self) -> tuple[int, ...]:
        """Return the ranks that live after a PeerLost. They go on without the others."""
        raise NotImplementedError(f"{type(self).__name__} cannot go on without a rank")

    def go_on_with(self, ranks: tuple[int, ...]) -> None:
        """Add up over these ranks alone from now on."""
        raise NotImplementedError(f"{type(self).__name__} cannot go on without a rank")

    def leave(self) -> None:
        """Prepare for the end of this process, when all ranks are done."""


Handed = tuple[int, dict[str, bytes]]
"""A number of steps, and the leaves that all ranks share after so many."""


class ElasticPeers(Peers):
    """Ranks that agree before each step who takes part in it.

    A rank that is new, or behind, gets the state of another one then.
    """

    @abstractmethod
    def join(self, give: Callable[[], Handed], take: Callable[[Handed], None]) -> None:
        """Join the ranks that train, once this rank is ready to.

        `give` returns the state that a rank hands to another one, which calls `take` with it.
        """

    @abstractmethod
    def meet(self) -> tuple[int, ...] | None:
        """Return the ranks that take the next step; None where their group has not been made anew.

        It calls `take` where this rank is behind. Raises PeerLost if a rank dies meanwhile.
        """

    @abstractmethod
    def commit(self) -> bool:
        """Return whether this rank takes the step.

        Without a failure, all ranks do. Otherwise some of them may, and the others get their state.
        """


class NothingToRestore(FileNotFoundError):
    """The folder of a store holds no checkpoint that the store can see."""


class Store(ABC, Generic[StateT]):
    """A series of checkpoints in one folder, of which the last few are kept.

    A store is above a method. It names the checkpoints, removes old ones, and finds the newest.
    """

    def __init__(self, place: Place, framework: Framework[StateT], options: dict[str, Any]) -> None:
        """Take the place, the framework that made the states, and the options in adapter.toml."""
        self.place = place
        self.framework = framework
        self.options = options

    @abstractmethod
    def open(self, state: StateT, folder: Path) -> None:
        """Take the state that later saves are given, and the folder of the checkpoints.

        The folder exists. It may hold the checkpoints of an earlier process.
        """

    @abstractmethod
    def save(self, state: StateT, step: int) -> Pending:
        """Save `state` as the checkpoint of a step, and remove checkpoints that are too old.

        Steps count from 1, and no later save has a smaller one.
        """

    @abstractmethod
    def restore_latest(self, state: StateT) -> int:
        """Restore the newest checkpoint into a state like that of `open`, and return its step.

        Raises NothingToRestore if the folder holds no checkpoint that the store can see.
        """

    def close(self) -> None:
        """Wait until nothing is in flight, and give back the resources that `open` made."""
