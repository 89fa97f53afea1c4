"""The engine as a method of the contract.

A framework's own method says where its tensors' memory is, and puts loaded tensors back.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from adapters.base import DirectIo, Entry, Framework, Method, Place
from adapters.deepfreeze.arena import Arena, Pin, SharedArena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.errors import Damaged
from adapters.deepfreeze.peers import Alone, Together
from adapters.deepfreeze.processes import Process
from adapters.deepfreeze.save import Save
from adapters.deepfreeze.stored import open_stored
from adapters.deepfreeze.tensor import Changes, Device, Source, Spec, changed_by, spec_of
from adapters.shared.formats import safetensors
from workloads import Role, role_of

# The memory of a save that training waits for.
RING_BYTES = 64 << 20
# Requests are no smaller, because between two of them a thread waits for the interpreter.
REQUEST_BYTES = 16 << 20

StateT = TypeVar("StateT")


class DeepFreezeMethod(Method[StateT]):
    """The engine behind the contract, for one framework.

    The options:

    - `synchronous`: `save` returns when the checkpoint is durable.
    - `memory`: a folder of a file system in memory. The arenas are files in it, and outlive the
      process.
    - `arenas`: the number of arenas in that folder.
    - `restore_from_memory`: the folder is the one that the machine gives, and loads take the
      checkpoint from there while it is there, else from the files.
    """

    # what the files' headers say about this framework's tensors
    metadata: ClassVar[Mapping[str, str]] = {}

    def __init__(self, place: Place, framework: Framework[StateT], options: dict[str, Any]) -> None:
        super().__init__(place, framework, options)
        self.synchronous = bool(options.get("synchronous", False))

    def open(self, state: StateT) -> None:
        """Agree with the other ranks on a name for this session, and make the memory."""
        self.peers = Alone() if self.place.world == 1 else Together()
        session, first_arena = self.peers.of_first(
            lambda: (secrets.token_hex(4), self._oldest_arena())
        )
        processes = self.peers.of_all(Process.this())
        self.device = self.new_device()
        # Arenas that are files must hold the whole state.
        has_ring = self.synchronous and not self.memory_folders()
        self.engine = Engine(
            Ranks(self.place.rank, self.place.world, session, processes),
            few_and_large(self.place.io),
            self.metadata,
            self.arenas(self.device.pin if self.device is not None else None),
            RING_BYTES if has_ring else None,
            first_arena,
            self.device,
        )
        self.tensors = self.specs(state)
        self.engine.prepare(self.tensors)

    def save(self, state: StateT, path: Path, step: int | None = None) -> Save:
        """Copy what the forward pass changes, and leave the rest to the background.

        `step` is the number of the checkpoint. By default, it is the number of steps taken.
        """
        try:
            sources = self.sources(state)
            step = self.step(state) if step is None else step
        except Exception:
            self.engine.refuse(path)
            raise
        if self.synchronous:
            return self._save_now(sources, path, step)
        return self.engine.save(sources, path, step)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the tensors of all files."""
        for file in sorted(path.glob("*.safetensors")):
            yield from safetensors.tensors(file, role_of)

    def close(self) -> None:
        """Wait until nothing is in flight, and free the memory.

        Raise the error of the last save if nobody was told.
        """
        self.engine.close()

    def new_device(self) -> Device | None:
        """Return the device that holds the tensors and copies them itself, if there is one.

        `open` keeps it as `device`.
        """
        return None

    def arenas(self, pin: Pin | None = None) -> list[Arena]:
        """Return the memory that saves are copied into, in turn."""
        return [SharedArena(folder, pin) for folder in self.memory_folders()] or [Arena(pin)]

    def memory_folders(self) -> list[Path]:
        """Return the folders whose files are the arenas, or none if the memory is private."""
        root = self.options.get("memory")
        if self.options.get("restore_from_memory"):
            root = self.place.memory
            if root is None:
                raise RuntimeError(
                    "this machine has no shared memory to restore checkpoints from; mount a "
                    "file system in memory at /dev/shm, or choose a method that restores from disk"
                )
        if root is None:
            return []
        count = self.options.get("arenas", 1)
        return [Path(root) / f"{number}-of-{self.place.world}" for number in range(count)]

    def nearest(self, path: Path) -> Path:
        """Return where to load the checkpoint of `path` from.

        That is an arena in memory if the options ask for it and one holds the very same bytes.
        Another training may have saved the same step there. Memory is lost when a machine starts
        anew, and the files are not.
        """
        if not self.options.get("restore_from_memory"):
            return path
        seals = {file.seal for file in open_stored(path).files}
        for folder in self.memory_folders():
            in_memory = _seals_in(folder)
            if in_memory and in_memory <= seals:
                return folder
        return path

    def specs(self, state: StateT) -> list[Spec]:
        """Return the tensors to save, in the order in which they are divided among the ranks."""
        return [spec_of(leaf, self.changed_by(leaf.role)) for leaf in self.framework.leaves(state)]

    def changed_by(self, role: Role) -> Changes:
        """Return when training changes the memory of the leaves of a role."""
        return changed_by(role)

    def step(self, state: StateT) -> int:
        """Return the number of steps that the state has taken."""
        # The state of every framework except raw has it.
        return int(state.step)  # type: ignore[attr-defined]

    def _oldest_arena(self) -> int:
        """Return the number of the arena to save to first.

        Rank 0 looks before any rank has touched the arenas, and tells the others.
        """
        steps = [_step_in(folder) for folder in self.memory_folders()]
        return steps.index(min(steps)) if steps else 0

    def _save_now(self, sources: Mapping[str, Source], path: Path, step: int) -> Save:
        """Save, and return when the checkpoint is durable."""
        try:
            save = self.engine.save(sources, path, step)
            save.finished()
        except Exception:
            # This may be an error of the save before, and the others rely on the present one.
            self.engine.join()
            raise
        except BaseException as interrupt:
            # The caller may change the state after this, and the background still reads it.
            self.engine.cancel(interrupt)
            raise
        return save

    @abstractmethod
    def sources(self, state: StateT) -> Mapping[str, Source]:
        """Return where the bytes of every tensor are."""


def few_and_large(io: DirectIo) -> DirectIo:
    """Return as many bytes in flight, in requests that are worth a turn in the interpreter."""
    block_bytes = max(io.block_bytes, REQUEST_BYTES)
    in_flight_bytes = io.depth * io.block_bytes
    return DirectIo(io.direct, block_bytes, depth=max(in_flight_bytes // block_bytes, 1))


def _seals_in(folder: Path) -> set[str]:
    """Return the digests of an arena's headers, which hold those of all bytes; none if it is empty.

    On several hosts, each has the files of its own ranks in memory.
    """
    try:
        return {file.seal for file in open_stored(folder, is_arena=True).files}
    except (Damaged, OSError):
        return set()


def _step_in(folder: Path) -> int:
    """Return the step of an arena's checkpoint, or -1 if it holds none."""
    try:
        return open_stored(folder, is_arena=True).step
    except (Damaged, OSError):
        return -1
