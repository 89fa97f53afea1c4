"""Intervals that hold what they promise, also where samples of one process are alike."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis import statistics
from harness.analysis.statistics import Estimate, Samples

TRUE = 10.0


def samples(values: list[float], processes: list[int] | None = None) -> Samples:
    return Samples(
        np.array(values, dtype=float), np.array(processes or [0] * len(values), dtype=np.int64)
    )


def drawn(generator: np.random.Generator, processes: int, each: int, between: float) -> Samples:
    """Return samples around TRUE.

    Their spread is 1 within a process and `between` from process to process.
    """
    centre = TRUE + between * generator.standard_normal((processes, 1))
    values = centre + generator.standard_normal((processes, each))
    return Samples(values.ravel(), np.repeat(np.arange(processes), each))


def pooled(found: Samples) -> Samples:
    """The same values, as if one process had given them all: what a naive bootstrap sees."""
    return Samples(found.values, np.zeros_like(found.processes))


def width(found: Estimate) -> float:
    return found.high - found.low


def shifted(found: Samples, factor: float) -> Samples:
    return Samples(factor * found.values, found.processes)


def test_the_interval_holds_the_median_and_lies_within_the_samples() -> None:
    found = samples([5, 1, 3, 2, 4, 100])
    estimate = statistics.median(found)
    assert estimate.value == 3.5
    assert 1 <= estimate.low < 3.5 < estimate.high <= 100


def test_the_same_samples_give_the_same_interval_at_every_reading() -> None:
    found = drawn(np.random.default_rng(1), processes=3, each=5, between=1)
    other = drawn(np.random.default_rng(2), processes=2, each=4, between=1)
    assert statistics.median(found) == statistics.median(found)
    assert statistics.ratio(found, other) == statistics.ratio(found, other)


def test_one_sample_has_no_interval() -> None:
    for found in (statistics.median(samples([3])), statistics.location(samples([3]))):
        assert found == Estimate(3, 3, 3, single=True)
        assert (found.half_width, found.is_above(1)) == (float("inf"), False)


@pytest.mark.parametrize(
    ("numerator", "denominator"), [([3], [2]), ([3], [2, 2, 2]), ([3, 3], [2])]
)
def test_a_ratio_has_no_interval_where_one_side_has_none(
    numerator: list[float], denominator: list[float]
) -> None:
    assert statistics.ratio(samples(numerator), samples(denominator)) == Estimate(
        1.5, 1.5, 1.5, single=True
    )


def test_two_samples_of_one_process_have_the_interval_of_that_process() -> None:
    assert statistics.median(samples([1, 3])) == Estimate(2, 1, 3)


def test_an_interval_is_above_what_lies_below_all_of_it() -> None:
    assert [Estimate(2, 1.5, 3).is_above(limit) for limit in (1, 1.5, 2)] == [True, False, False]


def test_equal_samples_have_no_width() -> None:
    assert statistics.median(samples([2, 2, 2, 2], [0, 0, 1, 1])) == Estimate(2, 2, 2)


def test_one_process_gives_an_interval_of_its_own_samples() -> None:
    assert (
        width(statistics.median(drawn(np.random.default_rng(1), processes=1, each=6, between=1)))
        > 0
    )


def test_one_sample_of_each_process_gives_the_interval_of_the_processes() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    one_each = statistics.median(samples(values, [0, 1, 2, 3, 4]))
    together = statistics.median(samples(values))
    assert (together.low, together.high) == (1, 5)
    # five processes stand for all others: the interval is wider on the scale of logarithms
    few = (5 / 4) ** 0.5
    assert (one_each.low, one_each.high) == pytest.approx((3 * (1 / 3) ** few, 3 * (5 / 3) ** few))


@pytest.mark.parametrize(("values", "processes"), [([], []), ([1.0], []), ([1.0, 2.0], [0])])
def test_samples_without_a_value_or_a_process_for_each_are_refused(
    values: list[float], processes: list[int]
) -> None:
    with pytest.raises(ValueError, match="at least one value and a process for each"):
        Samples(np.array(values), np.array(processes, dtype=np.int64))


def test_processes_that_differ_widen_the_interval() -> None:
    found = drawn(np.random.default_rng(3), processes=6, each=5, between=3)
    assert width(statistics.median(found)) > 1.5 * width(statistics.median(pooled(found)))
    other = samples([1.0, 1.0])
    assert width(statistics.ratio(found, other)) > 1.5 * width(
        statistics.ratio(pooled(found), other)
    )


def test_two_processes_that_disagree_give_an_interval_over_both() -> None:
    apart = samples([1.00, 1.01, 1.02, 2.00, 2.01, 2.02], [0, 0, 0, 1, 1, 1])
    estimate = statistics.median(apart)
    assert estimate.low <= 1.02
    assert estimate.high >= 2.00


def test_a_process_with_many_samples_is_still_one_process() -> None:
    unequal = samples([1.0] * 50 + [2.0, 2.0, 3.0, 3.0], [0] * 50 + [1, 1, 2, 2])
    assert statistics.median(unequal).high >= 2.0
    assert statistics.median(pooled(unequal)).high == 1.0


def coverage(between: float, processes: int, each: int, cluster: bool, tries: int = 200) -> float:
    """Return how often the 95 % interval of samples drawn around TRUE holds it."""
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(tries):
        found = drawn(generator, processes, each, between)
        estimate = statistics.median(found if cluster else pooled(found))
        covered += estimate.low <= TRUE <= estimate.high
    return covered / tries


@pytest.mark.parametrize(("between", "processes", "each"), [(2, 6, 5), (0, 1, 20), (0, 2, 3)])
def test_intervals_cover_the_true_median_about_as_often_as_they_say(
    between: float, processes: int, each: int
) -> None:
    assert 0.87 <= coverage(between, processes, each, cluster=True) <= 0.99


def test_a_bootstrap_blind_to_processes_would_cover_it_far_less_often() -> None:
    assert coverage(between=2, processes=6, each=5, cluster=False) <= 0.75


def test_more_draws_than_fit_into_memory_at_once_are_taken_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = drawn(np.random.default_rng(10), processes=3, each=5, between=1)
    monkeypatch.setattr(statistics, "_DRAWS_AT_ONCE", 7 * found.values.size + 1)
    medians = statistics.resampled_medians(found, np.random.default_rng(0), count=100)
    assert len(medians) == 100
    centre, few = np.median(found.values), (3 / 2) ** 0.5
    lowest, highest = (
        centre * (value / centre) ** few for value in (found.values.min(), found.values.max())
    )
    assert lowest * (1 - 1e-12) <= medians.min() <= medians.max() <= highest * (1 + 1e-12)
    assert len(np.unique(medians)) > 5


@pytest.mark.parametrize("lengths", [(3,), (2, 5), (4, 1, 7), (50, 50), (400, *[1] * 100)])
def test_draws_that_are_shared_are_those_that_the_seed_gives(lengths: tuple[int, ...]) -> None:
    processes = np.repeat(np.arange(len(lengths)), lengths)
    for seed in (1, 2):  # the second finds the first one's draws
        found = Samples(np.random.default_rng(seed).lognormal(size=len(processes)), processes)
        resampled = statistics.resampled_medians(found, np.random.default_rng(statistics._SEED))
        estimate = statistics.median(found)
        assert (estimate.low, estimate.high) == pytest.approx(
            tuple(np.quantile(resampled, [0.025, 0.975])), rel=1e-12
        )


@pytest.mark.parametrize(
    ("processes", "each", "between"), [(1, 300, 0), (4, 75, 0), (5, 60, 1), (3, 100, 3)]
)
def test_many_samples_give_the_interval_that_drawing_each_would(
    processes: int, each: int, between: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = drawn(np.random.default_rng(11), processes, each, between)
    one_by_one = statistics.resampled_medians(found, np.random.default_rng(0), count=4000)
    monkeypatch.setattr(statistics, "_FEW", 1)
    divided = statistics.resampled_medians(found, np.random.default_rng(0), count=4000)
    assert statistics.median(found) == statistics.median(found)
    assert set(divided.round(9)) <= set(
        statistics._spread(found.values, np.median(found.values), processes, True).round(9)
    )
    levels = [0.025, 0.25, 0.5, 0.75, 0.975]
    scale = np.subtract(*np.quantile(one_by_one, [0.975, 0.025]))
    assert np.quantile(divided, levels) == pytest.approx(
        np.quantile(one_by_one, levels), abs=0.1 * scale
    )


def test_processes_of_unequal_length_weigh_as_much_among_many_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unequal = samples([1.0] * 500 + [2.0] * 20 + [3.0] * 20, [0] * 500 + [1] * 20 + [2] * 20)
    one_by_one = statistics.median(unequal)
    monkeypatch.setattr(statistics, "_FEW", 100)
    assert statistics.median(unequal) == one_by_one


def test_a_ratio_is_one_median_over_the_other() -> None:
    generator = np.random.default_rng(4)
    found = drawn(generator, processes=3, each=6, between=0.1)
    ratio = statistics.ratio(shifted(found, 2), found)
    assert ratio.value == pytest.approx(2)
    assert 1 < ratio.low < 2 < ratio.high < 3


def test_a_ratio_of_what_does_not_differ_has_one_inside() -> None:
    generator = np.random.default_rng(5)
    first, second = (drawn(generator, processes=4, each=6, between=0.2) for _ in range(2))
    ratio = statistics.ratio(first, second)
    assert ratio.low < 1 < ratio.high


def test_several_comparisons_at_once_widen_each_interval() -> None:
    generator = np.random.default_rng(6)
    first, second = (drawn(generator, processes=4, each=6, between=0.5) for _ in range(2))
    alone, among_ten = (
        statistics.ratio(first, second),
        statistics.ratio(first, second, comparisons=10),
    )
    assert among_ten.value == alone.value
    assert among_ten.low < alone.low
    assert among_ten.high > alone.high
    assert statistics.ratio(first, second, comparisons=0) == alone, (
        "there is no less than one comparison"
    )


@pytest.mark.parametrize(("comparisons", "each"), [(0, 0.95), (1, 0.95), (2, 0.975), (10, 0.995)])
def test_the_confidence_of_each_by_bonferroni(comparisons: int, each: float) -> None:
    assert statistics.simultaneous(0.95, comparisons) == pytest.approx(each)


def test_more_samples_narrow_the_interval() -> None:
    generator = np.random.default_rng(9)
    few, many = (
        statistics.median(drawn(generator, processes=1, each=each, between=0)) for each in (6, 200)
    )
    assert width(many) < 0.5 * width(few)


def test_half_the_width_is_relative_to_the_value() -> None:
    assert Estimate(2, 1, 3).half_width == 0.5
