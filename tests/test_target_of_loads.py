"""A load goes into a state that differs from the saved one, and a model is rarely built for it."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adapters.base import Leaf
from harness.worker import verify
from harness.worker.loading import LoadTrial
from workloads import Role

ROLES = {
    "weights/a": Role.WEIGHT,
    "buffers/mean": Role.BUFFER,
    "optimizer/a": Role.OPTIMIZER,
    "rng/cpu": Role.RNG,
}


class Standing:
    """A process with a state of four numbers, of which a training step leaves some alone."""

    def __init__(self, still: Iterable[str]) -> None:
        self.values = dict.fromkeys(ROLES, 1.0)
        self.still = set(still)
        self.world = SimpleNamespace(any=bool)
        self.done: list[str] = []

    def digests(self) -> verify.Digests:
        return verify.digests(self._leaf(name) for name in ROLES)

    def _leaf(self, name: str) -> Leaf:
        array = np.array([self.values[name]])
        return Leaf(name, ROLES[name], "float64", array.shape, memoryview(array.tobytes()))

    def train(self) -> None:
        self.done.append("step")
        for name in self.values.keys() - self.still:
            self.values[name] += 1

    def rebuild_target(self) -> None:
        self.done.append("another model")
        self.values |= {"weights/a": -1.0, "optimizer/a": -1.0, "rng/cpu": -1.0}

    def assign_other_bytes(self, names: Iterable[str]) -> None:
        for name in names:
            self.done.append(name)
            self.values[name] = -2.0


@pytest.mark.parametrize(
    ("still", "done"),
    [
        ([], ["step"]),
        (["buffers/mean"], ["step", "buffers/mean"]),
        (["weights/a"], ["step", "weights/a"]),
        (["rng/cpu"], ["step", "another model"]),
        (["buffers/mean", "rng/cpu"], ["step", "buffers/mean", "another model"]),
    ],
)
def test_only_a_generator_that_stands_still_needs_another_model(
    still: list[str], done: list[str]
) -> None:
    bench: Any = Standing(still)
    trial = LoadTrial.__new__(LoadTrial)
    trial.bench = bench
    trial.saved = bench.digests()
    trial._make_target()
    assert bench.done == done
    assert verify.equal_leaves(trial.saved, bench.digests()) == []
