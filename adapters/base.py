"""The contract between the harness and a framework's checkpoint methods. Standard library only.

One `Framework` per folder makes, trains and inspects state; several `Method`s save and load it.
Nothing here knows about clocks, digests or cache state: the worker owns those, so that a method's
author cannot influence how the method is measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from workloads import Role, Workload


class Coverage(StrEnum):
    """How much of the state a method saves and restores."""

    WEIGHTS = "weights"
    WEIGHTS_AND_OPTIMIZER = "weights+optimizer"
    FULL = "full"

    @property
    def roles(self) -> frozenset[Role]:
        """The roles of the leaves that a method of this coverage restores."""
        weights = frozenset({Role.WEIGHT, Role.BUFFER})
        if self is Coverage.WEIGHTS:
            return weights
        if self is Coverage.WEIGHTS_AND_OPTIMIZER:
            return weights | {Role.OPTIMIZER}
        return frozenset(Role)


@dataclass(frozen=True)
class Replicated:
    """The same bytes on every rank."""


@dataclass(frozen=True)
class RankLocal:
    """Bytes of this rank alone (RNG, unsynchronized batch-norm statistics)."""


@dataclass(frozen=True)
class Shard:
    """A rank's part of a larger tensor, in elements."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]


Placement = Replicated | RankLocal | Shard


@dataclass(frozen=True)
class Leaf:
    """One tensor of the state under the workload's canonical name.

    `data` holds the C-contiguous host bytes in the workload's layout (format "B", one dimension).
    `dtype` is the numpy name, or "bfloat16", which numpy lacks.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    placement: Placement = Replicated()


@dataclass(frozen=True)
class DirectIo:
    """How this directory takes direct I/O fastest, as calibrated once per run; `direct` is false where it does not take it."""

    direct: bool
    block_bytes: int
    depth: int


@dataclass(frozen=True)
class Place:
    """Where a process stands: its rank, its device, and what it may use."""

    rank: int
    world: int
    device: str  # "cpu" or "cuda"
    temporary: Path  # for sockets, stagers and the like; removed by the worker
    io: DirectIo
    # host and port agreed over the launcher's own network; None in a world of one
    rendezvous: tuple[str, int] | None = None
    local_rank: int = 0
    # how the ranks train together: a name that adapter.toml declares; empty in a world of one
    strategy: str = ""
    # where checkpoints in shared memory may lie, which outlive the process
    memory: Path | None = None


def own_gpu(place: Place, gpus: int) -> int:
    """Return which of a node's GPUs is the rank's: NCCL wants one for each.

    RuntimeError where there are too few.
    """
    if place.local_rank >= gpus:
        raise RuntimeError(
            f"rank {place.rank} needs a GPU of its own, and is number {place.local_rank + 1} on a node that shows it {gpus}"
        )
    return place.local_rank


@dataclass(frozen=True)
class Entry:
    """A part of a checkpoint that its format names: a tensor, as a rule.

    `role` is None for what describes the others.

    `file` is the path inside the checkpoint; of a checkpoint that is a single file, its name.
    `stored_bytes` lie in the file, as it has them; `raw_bytes` they come to without the format's
    compression.
    """

    file: str
    name: str
    role: Role | None
    stored_bytes: int
    raw_bytes: int


StateT = TypeVar("StateT")


class Framework(ABC, Generic[StateT]):
    """Makes, trains and inspects one framework's training state."""

    def start(self, place: Place) -> None:
        """Choose the device, make the run deterministic and join the process group."""
        self.place = place

    @abstractmethod
    def build(self, workload: Workload, seed: int) -> StateT:
        """Return model, optimizer, RNG and position in the data, all derived from `seed`."""

    @abstractmethod
    def gradients(self, state: StateT) -> None:
        """Run forward and backward on the batch at the state's position.

        May change buffers and RNG, never weights.
        """

    @abstractmethod
    def update(self, state: StateT) -> None:
        """Average the gradients over the ranks, take the optimizer's step and move on by one batch."""

    @abstractmethod
    def loss(self, state: StateT) -> float:
        """The loss of the last `gradients` call on this rank's batch."""

    @abstractmethod
    def leaves(self, state: StateT) -> Iterator[Leaf]:
        """Yield everything a bitwise resume needs.

        A leaf's `data` need only live until the next one is asked for.
        """

    def assign(self, state: StateT, leaves: Mapping[str, memoryview]) -> None:
        """Give the named leaves these values: host bytes in the layout in which `leaves` yields them. The others stay."""
        raise NotImplementedError(f"{type(self).__name__} cannot assign leaves")

    def synchronize(self, state: StateT) -> None:
        """Return when the device has nothing left to do on this state."""

    def copy_to_host(self, state: StateT) -> int:
        """Copy the whole state off its device once, as fast as the framework can, and return the bytes; 0 where it is there."""
        return 0

    def stop(self) -> None:
        """Leave the process group."""

    @staticmethod
    def unsupported(workload: Workload, device: str) -> str | None:
        """Why this framework cannot hold the workload on the device, or None.

        Asked before `start`: it must start no device.
        """
        return None


class Pending:
    """A save in flight. This base class is one that had finished when `save` returned."""

    def staged(self) -> None:
        """Return when the state may change again."""

    def finished(self) -> None:
        """Return when the method calls the checkpoint complete; raise what went wrong in the background."""


class Method(ABC, Generic[StateT]):
    """One checkpoint mechanism.

    `open` and `close` are never timed; `save`, its `Pending` and `load` are.
    """

    def __init__(self, place: Place, framework: Framework[StateT], options: dict[str, Any]) -> None:
        """Take the place, the framework that made the states, and the options of adapter.toml."""
        self.place = place
        self.framework = framework
        self.options = options

    def open(self, state: StateT) -> None:
        """Make process groups, stagers and communicators.

        `state` has the shapes that saves and loads will have.
        """

    @abstractmethod
    def save(self, state: StateT, path: Path) -> Pending:
        """Write `state` to `path`, which does not exist yet; its parent is an empty directory."""

    @abstractmethod
    def load(self, state: StateT, path: Path) -> None:
        """Restore what the method covers into `state`, which holds it in its own memory on return, read to the end."""

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield what the format says lies where in a checkpoint of this method.

        The default: it does not tell. Never timed.
        """
        return iter(())

    def close(self) -> None:
        """Give back what `open` made."""
