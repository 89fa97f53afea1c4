"""Loads that do not restore what they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adapters.base import Pending
from adapters.raw.doubles import Fault
from adapters.raw.framework import State
from workloads import Role


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
    """Load from a hidden copy of the state, and not from the checkpoint."""

    name = "load-from-memory"

    def save(self, state: State, path: Path) -> Pending:
        self._hidden_copy().write_bytes(state.to_host())
        return super().save(state, path)

    def load(self, state: State, path: Path) -> None:
        with self._hidden_copy().open("rb", buffering=0) as stream:
            stream.readinto(state.host)
        state.from_host()

    def _hidden_copy(self) -> Path:
        return self.place.temporary / f"stash-{self.place.rank}.bin"


class Mapped(Fault):
    """Hand out views of the mapped file, so that nothing has been read when the clock stops."""

    name = "mapped"

    def load(self, state: State, path: Path) -> None:
        mapping = np.memmap(self.file(path, self.place.rank), dtype=np.uint8, mode="c")
        arena_address = np.frombuffer(state.host, dtype=np.uint8).ctypes.data
        for name, leaf in state.leaves.items():
            offset = leaf.ctypes.data - arena_address
            content = mapping[offset : offset + leaf.nbytes]
            state.leaves[name] = content.view(leaf.dtype).reshape(leaf.shape)


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
