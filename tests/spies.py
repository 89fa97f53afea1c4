"""Methods that look at the circumstances of their own measurement and refuse bad ones.

Workers import them by class path.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

from adapters.base import Pending
from adapters.raw.files import Buffered
from adapters.raw.framework import Raw, State
from workloads import Workload

STANDING = "optimizer/momentum/classifier.bias"


class Circumstances(Buffered):
    """Raises when it is called otherwise than the protocol promises."""

    def save(self, state: State, path: Path) -> Pending:
        assert not path.exists(), "the path exists already"
        assert list(path.parent.iterdir()) == [], "the parent is not empty"
        return super().save(state, path)

    def load(self, state: State, path: Path) -> None:
        assert not gc.isenabled(), "the garbage collector is on inside the clock"
        assert os.environ.get("CKPTBENCH_SAVED_HERE") is None, "this process has saved"
        super().load(state, path)


class NoCollection(Buffered):
    """Raises when the garbage collector could run inside a timed save."""

    saves = 0

    def save(self, state: State, path: Path) -> Pending:
        os.environ["CKPTBENCH_SAVED_HERE"] = "1"
        self.saves += 1
        timed = self.saves <= 3 and "TracerPid:\t0\n" in Path("/proc/self/status").read_text()
        assert not (timed and gc.isenabled()), "the garbage collector is on inside the clock"
        return super().save(state, path)


class Durations(Buffered):
    """Takes 20 ms in open, 30 in save, 60 in staged, 90 in finished and 120 in load."""

    def open(self, state: State) -> None:
        time.sleep(0.020)
        super().open(state)

    def save(self, state: State, path: Path) -> Pending:
        time.sleep(0.030)
        super().save(state, path)

        class Slow(Pending):
            def staged(self) -> None:
                time.sleep(0.060)

            def finished(self) -> None:
                time.sleep(0.090)

        return Slow()

    def load(self, state: State, path: Path) -> None:
        time.sleep(0.120)
        super().load(state, path)


class LastRankOpensLate(Buffered):
    """Takes 300 ms in open on the last rank."""

    def open(self, state: State) -> None:
        super().open(state)
        if self.place.rank == self.place.world - 1:
            time.sleep(0.300)


class WeightsOnly(Buffered):
    """Restores only the leaves of the model, and is wrong if declared as more or less."""

    def load(self, state: State, path: Path) -> None:
        kept = {
            name: leaf.copy()
            for name, leaf in state.leaves.items()
            if not name.startswith(("weights/", "buffers/"))
        }
        super().load(state, path)
        for name, leaf in kept.items():
            state.leaves[name][...] = leaf


class StandingLeaf(Raw):
    """One leaf has the same value in every state, as moments of unused rows have."""

    def build(self, workload: Workload, seed: int) -> State:
        state = super().build(workload, seed)
        state.leaves[STANDING][...] = 0
        return state

    def update(self, state: State) -> None:
        super().update(state)
        state.leaves[STANDING][...] = 0


class WithoutStandingLeaf(Buffered):
    """Leaves the leaf as it was."""

    def load(self, state: State, path: Path) -> None:
        kept = state.leaves[STANDING].copy()
        super().load(state, path)
        state.leaves[STANDING][...] = kept
