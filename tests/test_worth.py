"""The worth of a method under real failures: differences with intervals, and ties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.advice import Measured
from harness.analysis.worth import Setting, effect_of_bursts, mean_with_interval, worths
from harness.intervals.costs import Costs

COSTS = Costs(training_s=0.1, restore_s=0.2)


def method(name: str, costs: Costs = COSTS) -> Measured:
    return Measured(name, costs, costs, costs, 0.1, 200_000_000, ())


def test_the_same_costs_are_a_tie_and_lower_ones_a_gain() -> None:
    found = [method("one"), method("same"), method("fast", replace(COSTS, training_s=0.01))]
    first, same, fast = worths(found, Setting("lanl-20", 1024, has_spares=True), draws=20)
    assert first.is_tie
    assert same.is_tie
    assert same.share == first.share
    assert not fast.is_tie
    assert fast.gain.low > 0


def test_spares_help_where_repairs_take_long_and_their_nodes_count() -> None:
    """One node with one spare trains at most half of the time of two nodes."""
    (alone,) = worths([method("one")], Setting("gpu-400", 8, has_spares=False), draws=20)
    (spared,) = worths([method("one")], Setting("gpu-400", 8, has_spares=True), draws=20)
    assert spared.share < 0.5 < alone.share
    (many,) = worths([method("one")], Setting("gpu-400", 1024, has_spares=False), draws=20)
    (many_spared,) = worths([method("one")], Setting("gpu-400", 1024, has_spares=True), draws=20)
    assert many_spared.share > 2 * many.share


def test_more_nodes_than_a_trace_has_are_extrapolated() -> None:
    assert Setting("gpu-400", 16_384, has_spares=False).is_extrapolated
    assert not Setting("gpu-400", 3200, has_spares=False).is_extrapolated
    assert Setting("gpu-400", 3200, has_spares=True).is_extrapolated


def test_bursts_have_an_effect_with_an_interval() -> None:
    effect = effect_of_bursts(method("one"), Setting("lanl-20", 1024, has_spares=False), 20)
    assert effect.low <= effect.value <= effect.high
    assert abs(effect.value) < 0.1


@pytest.mark.parametrize("deviation", [0.0, 1.0])
def test_the_interval_of_a_mean_grows_with_the_spread(deviation: float) -> None:
    values = np.random.default_rng(1).normal(3.0, deviation, 100)
    estimate = mean_with_interval(values)
    half_width = 0.5 * (estimate.high - estimate.low)
    assert half_width == pytest.approx(1.96 * deviation / 10, abs=0.03)
