"""The compressibility of a state's bytes, role by role."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.base import Leaf
from harness.experiments.sizes import payload
from harness.experiments.sizes.records import RolePayload
from workloads import Role


def leaf(name: str, role: Role, array: NDArray) -> Leaf:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Leaf(name, role, array.dtype.name, array.shape, memoryview(flat))


def described(*leaves: Leaf) -> dict[str, RolePayload]:
    def again() -> Iterator[Leaf]:
        return iter(leaves)

    return {found.role: found for found in payload.compressibility(again)}


def test_each_role_is_told_apart() -> None:
    noise = np.random.default_rng(0).bytes(1 << 16)
    found = described(
        leaf("weights/a", Role.WEIGHT, np.frombuffer(noise, dtype=np.uint8)),
        leaf("optimizer/a", Role.OPTIMIZER, np.zeros(1 << 14, dtype=np.float32)),
    )
    weights, slots = found["weight"], found["optimizer"]
    assert (weights.bytes, weights.sampled_bytes) == (1 << 16, 1 << 16)
    assert weights.deflated_bytes >= 1 << 16
    assert slots.deflated_bytes < 0.01 * slots.bytes


def test_a_shuffle_brings_out_what_the_elements_have_in_common() -> None:
    # their exponents are alike
    values = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    found = described(leaf("weights/a", Role.WEIGHT, values))["weight"]
    assert found.shuffled_bytes < 0.95 * found.deflated_bytes


def test_a_large_role_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "SAMPLE_BYTES", 10_000)
    large, small = (
        np.zeros(25_000, dtype=np.float32),
        np.random.default_rng(0).standard_normal(25_000).astype(np.float32),
    )
    found = described(leaf("weights/a", Role.WEIGHT, large), leaf("weights/b", Role.WEIGHT, small))[
        "weight"
    ]
    assert found.bytes == 200_000
    assert found.sampled_bytes == pytest.approx(10_000, rel=0.01)
    assert 4_000 < found.deflated_bytes < 6_000, "half of the sample is noise, half is zeros"


def test_leaves_without_elements_and_of_odd_types_are_taken() -> None:
    found = described(
        leaf("rng/a", Role.RNG, np.arange(5, dtype=np.uint64)),
        leaf("rng/b", Role.RNG, np.zeros(0, dtype=np.float32)),
        leaf("rng/c", Role.RNG, np.ones(3, dtype=bool)),
    )["rng"]
    assert (found.bytes, found.sampled_bytes) == (43, 43)
