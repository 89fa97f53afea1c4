"""Intervals of ratios: scipy's tests say the same, and they hold where processes are few."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from harness.analysis import ratios
from harness.analysis.statistics import Estimate, Samples

# Ratios of 16 pairs around 1.15.
SLOWER = [
    *(1.15, 1.16, 1.13, 1.17, 1.14, 1.15, 1.12, 1.18),
    *(1.15, 1.16, 1.14, 1.13, 1.17, 1.16, 1.15, 1.14),
]


def samples(values: Sequence[float]) -> Samples:
    """Return one value of each process."""
    return Samples(np.array(values), np.arange(len(values)))


def test_intervals_of_groups_are_welchs() -> None:
    base, head = [1.0, 1.1, 0.9, 1.05], [1.2, 1.5, 1.3, 1.25, 1.4]
    test = stats.ttest_ind(np.log(head), np.log(base), equal_var=False)
    expected = test.confidence_interval(0.99)
    found = ratios.of_groups(samples(base), samples(head), 0.99)
    assert (found.low, found.high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))


def test_drift_widens_the_interval_of_groups_at_both_ends() -> None:
    base, head = samples([1.0, 1.1, 0.9, 1.05]), samples([1.2, 1.5, 1.3, 1.25, 1.4])
    still = ratios.of_groups(base, head, 0.99)
    moved = ratios.of_groups(base, head, 0.99, drift=math.log(1.1))
    assert moved.value == still.value
    assert (moved.low, moved.high) == pytest.approx((still.low / 1.1, still.high * 1.1))


def test_intervals_of_few_pairs_are_students() -> None:
    base, head = [1.0, 1.1, 0.9, 1.05], [1.2, 1.5, 1.3, 1.25]
    expected = stats.ttest_rel(np.log(head), np.log(base)).confidence_interval(0.99)
    found = ratios.of_pairs(samples(base), samples(head), 0.99)
    assert (found.low, found.high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))


@pytest.mark.parametrize(
    ("pairs", "confidence"), [(6, 0.9), (8, 0.95), (11, 0.998), (12, 0.95), (20, 0.99)]
)
def test_intervals_of_enough_pairs_are_those_of_wilcoxons_signed_ranks(
    pairs: int, confidence: float
) -> None:
    generator, excluded = np.random.default_rng(pairs), 0
    for _ in range(50):
        head = np.exp(generator.normal(0.6, 1.0, pairs))
        found = ratios.of_pairs(samples(np.ones(pairs)), samples(head), confidence)
        is_excluded = not found.low <= 1.0 <= found.high
        excluded += is_excluded
        chance = stats.wilcoxon(np.log(head), method="exact").pvalue
        assert (chance <= 1 - confidence) == is_excluded
        assert found.low <= found.value <= found.high
    assert 0 < excluded < 50


def test_a_wild_pair_that_points_as_the_others_do_hides_nothing() -> None:
    found = ratios.of_pairs(samples(np.ones(12)), samples([*SLOWER[:11], 3.0]), 0.998)
    assert found.low > 1.1
    assert found.value == pytest.approx(1.15, abs=0.01)


@pytest.mark.parametrize(("pairs", "reach"), [(14, 0.5), (17, 0.0)])
def test_one_wild_pair_moves_an_end_by_half_of_its_error_and_among_seventeen_by_nothing(
    pairs: int, reach: float
) -> None:
    """With as many metrics as the gate suite has."""
    head = [*SLOWER[: pairs - 1], 0.5]
    found = ratios.of_pairs(samples(np.ones(pairs)), samples(head), 1 - 0.03 / 8)
    expected = reach * math.log(0.5) + (1 - reach) * math.log(1.15)
    assert math.log(found.low) == pytest.approx(expected, abs=0.03)
    assert found.value == pytest.approx(1.15, abs=0.01)


@pytest.mark.parametrize("make_ratio", [ratios.of_pairs, ratios.of_groups])
def test_one_process_says_nothing_about_others(make_ratio: Callable[..., Estimate]) -> None:
    found = make_ratio(samples([1.0]), samples([2.0]), 0.95)
    assert (found.value, found.low, found.high) == (2.0, 0.0, float("inf"))
    assert ratios.half_width(samples([2.0]), 0.95) == float("inf")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make_ratio", [ratios.of_pairs, ratios.of_groups])
def test_equal_values_have_an_interval_of_one_point(make_ratio: Callable[..., Estimate]) -> None:
    found = make_ratio(samples([0.001] * 4), samples([0.002] * 4), 0.95)
    assert (found.low, found.high) == pytest.approx((2.0, 2.0), rel=1e-12)


def test_pairs_of_no_common_process_have_the_ratio_of_the_medians() -> None:
    base = samples([1.0, 2.0, 3.0])
    head = Samples(np.array([4.0, 5.0]), np.array([7, 8]))
    assert ratios.of_pairs(base, head, 0.95) == Estimate(2.25, 0.0, float("inf"))


@pytest.mark.filterwarnings("error")
def test_an_end_beyond_all_numbers_is_infinite() -> None:
    found = ratios.of_groups(samples([1.0, 9.0]), samples([1.0, 7.0]), 0.999999)
    assert (found.low, found.high) == (0.0, float("inf"))


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("processes", [6, 12])
def test_intervals_of_few_processes_hold_at_high_confidence(paired: bool, processes: int) -> None:
    """A bootstrap of six processes does not: this is why it is not used here."""
    generator = np.random.default_rng(7)
    make_ratio = ratios.of_pairs if paired else ratios.of_groups
    confidence, tries, missed = 0.99, 2000, 0
    for _ in range(tries):
        base, head = (samples(np.exp(0.1 * generator.standard_normal(processes))) for _ in range(2))
        found = make_ratio(base, head, confidence)
        missed += not found.low <= 1.0 <= found.high
    assert missed <= 1.6 * (1 - confidence) * tries
