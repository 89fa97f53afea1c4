"""The engine as a method of the contract.

A framework's own method says where its tensors' memory is, and takes them back.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from adapters.base import DirectIo, Entry, Framework, Method, Place
from adapters.deepfreeze.arena import Arena, Pin, SharedArena
from adapters.deepfreeze.engine import Engine, Ranks, Save
from adapters.deepfreeze.stored import Damaged, open_stored
from adapters.deepfreeze.tensor import Changes, Device, Source, Spec, changed_by, spec_of
from adapters.shared.formats import safetensors
from workloads import Role, role_of

RING_BYTES = 64 << 20  # of a save that nobody runs beside
REQUEST_BYTES = 16 << 20  # at least: between two requests a thread waits for the interpreter

T = TypeVar("T")
StateT = TypeVar("StateT")


class DeepFreezeMethod(Method[StateT]):
    """The engine behind the contract, for one framework.

    Options: `synchronous` makes `save` return when the checkpoint is durable. `memory` names a
    folder of a file system in memory: the arenas, `arenas` in number, are then files in it and
    outlive the process. With `restore_from_memory` that folder is the place's own, and loads take
    the checkpoint from there.
    """

    metadata: ClassVar[Mapping[str, str]] = {}  # what the header says of this framework's tensors

    def __init__(self, place: Place, framework: Framework[StateT], options: dict[str, Any]) -> None:
        super().__init__(place, framework, options)
        self.synchronous = bool(options.get("synchronous", False))

    def open(self, state: StateT) -> None:
        """Agree with the other ranks on a name for this session, and have the memory."""
        self.peers = Alone() if self.place.world == 1 else Together()
        session, first_arena = self.peers.of_first(
            lambda: (secrets.token_hex(4), self._oldest_arena())
        )
        ranks = Ranks(self.place.rank, self.place.world, session)
        ring_bytes = RING_BYTES if self.synchronous and not self.memory_folders() else None
        self.device = self.new_device()
        io, arenas = (
            few_and_large(self.place.io),
            self.arenas(self.device.pin if self.device is not None else None),
        )
        self.engine = Engine(ranks, io, self.metadata, arenas, ring_bytes, first_arena, self.device)
        self.tensors = self.specs(state)
        self.engine.prepare(self.tensors)

    def save(self, state: StateT, path: Path) -> Save:
        """Copy what the forward pass changes, and leave the rest to the background."""
        try:
            sources, step = self.sources(state), self.step(state)
        except Exception:
            self.engine.refuse(path)
            raise
        return (self._save_now if self.synchronous else self.engine.save)(sources, path, step)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the tensors of all files."""
        for file in sorted(path.glob("*.safetensors")):
            yield from safetensors.tensors(file, role_of)

    def close(self) -> None:
        """Wait for what is in flight, and let go of the memory; raise what went wrong and nobody has been told."""
        self.engine.close()

    def new_device(self) -> Device | None:
        """Return what holds the tensors and copies them itself, where something does; `open` keeps it as `device`."""
        return None

    def arenas(self, pin: Pin | None = None) -> list[Arena]:
        """Return the memory that saves are copied into, in turn."""
        return [SharedArena(folder, pin) for folder in self.memory_folders()] or [Arena(pin)]

    def memory_folders(self) -> list[Path]:
        """Return the folders whose files are the arenas, where they are files."""
        if self.options.get("restore_from_memory") and self.place.memory is None:
            raise RuntimeError("this machine gives no shared memory to restore from")
        root = (
            self.place.memory
            if self.options.get("restore_from_memory")
            else self.options.get("memory")
        )
        if root is None:
            return []
        return [
            Path(root) / f"{number}-of-{self.place.world}"
            for number in range(self.options.get("arenas", 1))
        ]

    def nearest(self, path: Path) -> Path:
        """Return where a load takes the checkpoint of `path` from: memory, where that is what the options ask for."""
        if not self.options.get("restore_from_memory"):
            return path
        step = open_stored(path).step
        for folder in self.memory_folders():
            if open_stored(folder, is_arena=True).step == step:
                return folder
        raise Damaged(f"no arena in memory holds the checkpoint of step {step}")

    def specs(self, state: StateT) -> list[Spec]:
        """Return what is to be saved, in the order in which it is divided over the ranks."""
        return [spec_of(leaf, self.changed_by(leaf.role)) for leaf in self.framework.leaves(state)]

    def changed_by(self, role: Role) -> Changes:
        """Return when training changes the memory of leaves of the role."""
        return changed_by(role)

    def step(self, state: StateT) -> int:
        """Return the step at which the state stands."""
        return int(state.step)  # type: ignore[attr-defined]  # every framework's state but raw's has one

    def _oldest_arena(self) -> int:
        """Return which arena to save to first.

        Rank 0 asks before any rank has touched them: what it says then goes for all.
        """
        steps = [_step_in(folder) for folder in self.memory_folders()]
        return steps.index(min(steps)) if steps else 0

    def _save_now(self, sources: Mapping[str, Source], path: Path, step: int) -> Save:
        try:
            save = self.engine.save(sources, path, step)
            save.finished()
        except Exception:
            # also where what is told is of the save before, and the others count on this one
            self.engine.join()
            raise
        except BaseException as interrupt:
            # the state may change now, and the background still reads it
            self.engine.cancel(interrupt)
            raise
        return save

    @abstractmethod
    def sources(self, state: StateT) -> Mapping[str, Source]:
        """Return where the bytes of every tensor are."""


def few_and_large(io: DirectIo) -> DirectIo:
    """Return as many bytes in flight, in requests that are worth a thread's turn in the interpreter."""
    block_bytes = max(io.block_bytes, REQUEST_BYTES)
    return DirectIo(io.direct, block_bytes, max(io.depth * io.block_bytes // block_bytes, 1))


def _step_in(folder: Path) -> int:
    """The step of an arena's checkpoint, or -1 where it holds none."""
    try:
        return open_stored(folder, is_arena=True).step
    except (Damaged, OSError):
        return -1


class Alone:
    """A world of one rank, which agrees with itself."""

    def of_first(self, make: Callable[[], T]) -> T:
        """Return what rank 0 makes, or raise what it raises, on every rank."""
        return make()

    def on_all(self, well: bool) -> bool:
        """Return whether all is well on every rank."""
        return well


class Together(Alone):
    """The ranks that MPI has started. Only for the main thread: not every MPI lets others in."""

    def __init__(self) -> None:
        from mpi4py import MPI  # starts MPI, which a world of one does without

        self._world = MPI.COMM_WORLD

    def of_first(self, make: Callable[[], T]) -> T:
        made, error = _tried(make) if self._world.rank == 0 else (None, None)
        made, error = self._world.bcast((made, error))
        if error is not None:
            raise error
        found: T = made
        return found

    def on_all(self, well: bool) -> bool:
        return all(self._world.allgather(well))


def _tried(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return make(), None
    except Exception as error:
        return None, error
