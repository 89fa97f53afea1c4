"""Loads of checkpoints that hold one rank's view of what every rank has of its own."""

from __future__ import annotations

from pathlib import Path

from adapters.raw.doubles import Fault
from adapters.raw.framework import State


class OneView(Fault):
    """Give all ranks what rank 0 had, which is no mistake where the method declares one view."""

    name = "one-view"

    def load(self, state: State, path: Path) -> None:
        for rank in range(self.place.world):
            parts = self.parts(state, rank)
            wanted = parts if rank == 0 else parts[:1]
            self.read(self.file(path, rank), wanted)
        state.from_host()

    def values_of(self, state: State, path: Path, rank: int) -> bytes:
        """Return the rank-local bytes that a rank has saved."""
        _, (local, offset) = self.parts(state, rank)
        values = bytearray(len(local))
        self.read(self.file(path, rank), [(memoryview(values), offset)])
        return bytes(values)


class ZerosElsewhere(OneView):
    """Restore what rank 0 had on rank 0, and zeros on the other ranks."""

    name = "zeros-elsewhere"

    def load(self, state: State, path: Path) -> None:
        super().load(state, path)
        if self.place.rank != 0:
            local = state.host[state.local_start :]
            local[:] = bytes(len(local))


class HalvesOfRanks(OneView):
    """Restore each rank-local leaf half from rank 0 and half from rank 1."""

    name = "halves-of-ranks"

    def load(self, state: State, path: Path) -> None:
        super().load(state, path)
        local = state.host[state.local_start :]
        others = self.values_of(state, path, 1)
        local[::2] = others[::2]


class LeavesOfRanks(OneView):
    """Restore the random generator from rank 1, and the other rank-local leaves from rank 0."""

    name = "leaves-of-ranks"

    def load(self, state: State, path: Path) -> None:
        super().load(state, path)
        local = state.host[state.local_start :]
        address = state.leaves["rng/numpy"].ctypes.data
        start = address - state.arena.ctypes.data - state.local_start
        others = self.values_of(state, path, 1)
        local[start:] = others[start:]
