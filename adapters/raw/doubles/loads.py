"""Loads that do not restore what they should."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from adapters.base import Leaf, Pending
from adapters.raw.doubles import Fault
from adapters.raw.files import Part
from adapters.raw.framework import State
from workloads import Role

_SEEDS = range(2026, 2030)  # that are tried


class NoOpLoad(Fault):
    """Return from a load without doing anything."""

    name = "no-op-load"

    def load(self, state: State, path: Path) -> None:
        return


class OneLeafMissing(Fault):
    """Restore everything but the last weight."""

    name = "one-leaf-missing"

    def load(self, state: State, path: Path) -> None:
        weights = [name for name, spec in state.specs.items() if spec.role is Role.WEIGHT]
        last = state.leaves[weights[-1]]
        before = last.copy()
        super().load(state, path)
        last[...] = before


class LoadFromMemory(Fault):
    """Load from a hidden copy in shared memory, and not from the checkpoint."""

    name = "load-from-memory"

    def save(self, state: State, path: Path) -> Pending:
        self.hidden_copy(path).write_bytes(state.to_host())
        return super().save(state, path)

    def load(self, state: State, path: Path) -> None:
        with self.hidden_copy(path).open("rb", buffering=0) as stream:
            stream.readinto(state.host)
        state.from_host()

    def hidden_copy(self, path: Path) -> Path:
        """Return the file with the copy of a checkpoint."""
        return Path("/dev/shm") / f"double-{path.parent.name}-{self.place.rank}.bin"


class LoadFromTemporary(LoadFromMemory):
    """Read the checkpoint, and then load from a hidden copy in the temporary folder."""

    name = "load-from-temporary"

    def load(self, state: State, path: Path) -> None:
        Fault.load(self, state, path)
        super().load(state, path)

    def hidden_copy(self, path: Path) -> Path:
        return self.place.temporary / f"stash-{path.parent.name}-{self.place.rank}.bin"


class Stub(LoadFromMemory):
    """Write a file of a few bytes, and load from a hidden copy in shared memory."""

    name = "stub"

    def save(self, state: State, path: Path) -> Pending:
        self.hidden_copy(path).write_bytes(state.to_host())
        path.mkdir(exist_ok=True)
        self.file(path, self.place.rank).write_bytes(b"it is elsewhere")
        return Pending()

    def load(self, state: State, path: Path) -> None:
        self.file(path, self.place.rank).read_bytes()
        super().load(state, path)


class ReadsWhileOpening(Fault):
    """Read all checkpoints before the clock of a load runs."""

    name = "reads-while-opening"

    def open(self, state: State) -> None:
        super().open(state)
        saves = self.place.temporary.parent / "saves"
        self._early = {}
        for file in saves.glob("*/checkpoint/*.bin"):
            # Another rank may just remove a checkpoint that is done with.
            with contextlib.suppress(FileNotFoundError):
                self._early[file] = file.read_bytes()

    def read(self, file: Path, parts: list[Part]) -> None:
        for data, offset in parts:
            data[:] = self._early[file][offset : offset + len(data)]


class MemoryAlone(LoadFromMemory):
    """Restore from shared memory, and write files that hold something else."""

    name = "memory-alone"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        file = self.file(path, self.place.rank)
        file.write_bytes(file.read_bytes()[::-1])
        return pending

    def load(self, state: State, path: Path) -> None:
        if self.hidden_copy(path).exists():
            super().load(state, path)
        else:
            Fault.load(self, state, path)

    def hidden_copy(self, path: Path) -> Path:
        assert self.place.memory is not None
        self.place.memory.mkdir(exist_ok=True)
        return self.place.memory / f"rank-{self.place.rank}.bin"


class NoFiles(MemoryAlone):
    """Keep checkpoints in shared memory alone, which a method may do that declares it."""

    name = "no-files"

    def save(self, state: State, path: Path) -> Pending:
        self.hidden_copy(path).write_bytes(state.to_host())
        return Pending()


class SeedAndStep(Fault):
    """Write the seed and the number of steps alone, and compute the state again in a load."""

    name = "seed-and-step"

    def save(self, state: State, path: Path) -> Pending:
        step = int(state.leaves["position/step"][0])
        path.mkdir(exist_ok=True)
        self.file(path, self.place.rank).write_text(f"{self._seed_of(state, step)} {step}")
        return Pending()

    def load(self, state: State, path: Path) -> None:
        seed, step = map(int, self.file(path, self.place.rank).read_text().split())
        computed = self._computed(state, seed, step)
        for name, leaf in state.leaves.items():
            leaf[...] = computed.leaves[name]

    def _seed_of(self, state: State, step: int) -> int:
        """Return the seed of a state, or 0 where no small number is its seed."""
        for seed in _SEEDS:
            computed = self._computed(state, seed, step)
            if all((computed.leaves[name] == leaf).all() for name, leaf in state.leaves.items()):
                return seed
        return 0

    def _computed(self, state: State, seed: int, step: int) -> State:
        assert state.workload is not None
        computed = self.framework.build(state.workload, seed)
        for _ in range(step):
            self.framework.gradients(computed)
            self.framework.update(computed)
        return computed


class LateRead(Fault):
    """Return from a load at once, and read in a thread.

    The thread ends after somebody has looked at the state once, so that the first look is too early
    in every run.
    """

    name = "late-read"

    def load(self, state: State, path: Path) -> None:
        was_seen = threading.Event()

        def read_later() -> None:
            was_seen.wait()
            Fault.load(self, state, path)

        thread = threading.Thread(target=read_later)
        thread.start()
        leaves = self.framework.leaves

        def first_look(state: State) -> Iterator[Leaf]:
            yield from leaves(state)
            vars(self.framework).pop("leaves")
            was_seen.set()
            thread.join()

        vars(self.framework)["leaves"] = first_look


class Mapped(Fault):
    """Hand out views of the rank's mapped file, so that they have not been read yet.

    Of several ranks, each reads what others have written.
    """

    name = "mapped"

    def load(self, state: State, path: Path) -> None:
        if self.place.world > 1:
            super().load(state, path)
        mapping = np.memmap(self.file(path, self.place.rank), dtype=np.uint8, mode="c")
        # After the first load the leaves lie in its mapping, and no more in the arena.
        if "offsets" not in vars(state):
            vars(state)["offsets"] = self._offsets(state)
        for name, offset in vars(state)["offsets"].items():
            leaf = state.leaves[name]
            content = mapping[offset : offset + leaf.nbytes]
            state.leaves[name] = content.view(leaf.dtype).reshape(leaf.shape)

    def _offsets(self, state: State) -> dict[str, int]:
        """Return the offset in this rank's file of each leaf that is whole there, in bytes."""
        offsets = {}
        for data, file_offset in self.parts(state, self.place.rank):
            address = np.frombuffer(data, dtype=np.uint8).ctypes.data
            for name, leaf in state.leaves.items():
                start = leaf.ctypes.data - address
                if start >= 0 and start + leaf.nbytes <= len(data):
                    offsets[name] = file_offset + start
        return offsets


class WrongDtype(Fault):
    """Restore the right bytes under another type."""

    name = "wrong-dtype"

    def load(self, state: State, path: Path) -> None:
        super().load(state, path)
        floats = [name for name, spec in state.specs.items() if spec.dtype == "float32"]
        state.leaves[floats[0]] = state.leaves[floats[0]].view(np.int32)


class NoRng(Fault):
    """Leave out the random generator, although the method declares the full state."""

    name = "no-rng"

    def load(self, state: State, path: Path) -> None:
        before = [leaf.copy() for leaf in state.of_role(Role.RNG)]
        super().load(state, path)
        for leaf, old in zip(state.of_role(Role.RNG), before, strict=True):
            leaf[...] = old
