"""The worth of a method under real failures: differences with intervals, and ties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis import worth, worth_figure
from harness.analysis.advice import Measured
from harness.analysis.means import widened
from harness.analysis.statistics import Estimate
from harness.analysis.worth import (
    ReplayedJob,
    Replays,
    Setting,
    Worth,
    effect_of_bursts,
    mean_with_interval,
    read,
    replayed,
    worths,
)
from harness.docs import worth as docs_worth
from harness.intervals import failures
from harness.intervals.costs import Costs
from harness.intervals.failures import NodeFailures

COSTS = Costs(training_s=0.1, restore_s=0.2)
DAY_S = 86_400.0


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


def spread(name: str, training_s: float, reach_s: float) -> Measured:
    """Return a method of which the cost of a checkpoint was measured within so many seconds."""
    middle, low, high = (
        replace(COSTS, training_s=training_s + off_s) for off_s in (0.0, -reach_s, reach_s)
    )
    return Measured(name, middle, low, high, 0.1, 200_000_000, ())


@pytest.mark.parametrize(("reach_s", "is_tie"), [(0.01, False), (0.05, True)])
def test_what_the_costs_may_be_off_makes_a_tie_of_a_small_difference(
    reach_s: float, is_tie: bool
) -> None:
    """The draws alone tell a checkpoint of 0.1 s from one of 0.06 s."""
    found = [spread("one", 0.1, reach_s), spread("faster", 0.06, reach_s)]
    _, faster = worths(found, Setting("lanl-20", 1024, has_spares=True), draws=20)
    assert faster.gain.value > 0
    assert faster.is_tie == is_tie


def test_independent_errors_add_up_as_squares() -> None:
    found = widened(Estimate(1.0, 0.7, 1.3), [(0.4, 0.0), (0.0, 0.4)])
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 0.5, 1.5))


def test_spares_help_where_repairs_take_long_and_their_nodes_count() -> None:
    """One node with one spare trains about half of the time of two nodes."""
    (alone,) = worths([method("one")], Setting("gpu-400", 8, has_spares=False), draws=20)
    (spared,) = worths([method("one")], Setting("gpu-400", 8, has_spares=True), draws=20)
    assert 0.45 < spared.share < 0.55 < alone.share
    (many,) = worths([method("one")], Setting("gpu-400", 1024, has_spares=False), draws=20)
    (many_spared,) = worths([method("one")], Setting("gpu-400", 1024, has_spares=True), draws=20)
    assert many_spared.share > 2 * many.share


def test_more_nodes_than_a_trace_has_are_extrapolated() -> None:
    assert Setting("gpu-400", 16_384, has_spares=False).is_extrapolated
    assert not Setting("gpu-400", 3200, has_spares=False).is_extrapolated
    assert Setting("gpu-400", 3200, has_spares=True).is_extrapolated


def in_bursts(burst: int) -> NodeFailures:
    """Return failures of 64 nodes in 1,000 days: 600 in groups that come within a minute."""
    rng = np.random.default_rng(7)
    begins_s = np.sort(rng.uniform(0.0, 1000 * DAY_S, 600 // burst))
    at_s = (begins_s[:, None] + np.arange(burst) * 60.0 / burst).ravel()
    count = len(at_s)
    return NodeFailures(
        nodes=64,
        length_s=1000 * DAY_S,
        at_s=at_s,
        node=rng.permutation(np.arange(count) % 64),
        repair_s=np.full(count, 3600.0),
        interrupts=np.ones(count, dtype=bool),
    )


@pytest.mark.parametrize(("burst", "helps"), [(10, True), (1, False)])
def test_failures_that_come_together_cost_one_wait(
    burst: int, helps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without spares, ten failures of one minute cost one repair, and scattered ones ten."""
    monkeypatch.setattr(failures, "trace", lambda name: in_bursts(burst))
    effect = effect_of_bursts(method("one"), Setting("lanl-20", 256, has_spares=False), 20)
    assert effect.low <= effect.value <= effect.high
    if helps:
        # 150 of 300 failures in 500 days strike half of the nodes, and wait for an hour each.
        assert effect.low > 0.005
        assert effect.value < 0.0125
    else:
        assert effect.low <= 0.0 <= effect.high


def test_scattered_failures_are_as_many_and_strike_nodes_that_work() -> None:
    struck = in_bursts(10)
    long = replace(struck, repair_s=np.full(len(struck.at_s), 30 * DAY_S))
    works = failures.strikes_working(long)
    assert not works.all()
    scattered = worth._scattered(long, np.random.default_rng(1))
    assert failures.strikes_working(scattered).all()
    assert sorted(scattered.node) == sorted(long.node[works])
    assert (np.diff(scattered.at_s) >= 0).all()


def test_many_comparisons_have_wider_intervals() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 100)
    one, many = (mean_with_interval(values, comparisons) for comparisons in (1, 24))
    assert many.value == one.value
    # The quantiles of Student's t with 99 degrees of freedom: 1.984 and 3.161.
    ratio = (many.high - many.low) / (one.high - one.low)
    assert ratio == pytest.approx(3.161 / 1.984, rel=1e-3)


@pytest.mark.parametrize("deviation", [0.0, 1.0])
def test_the_interval_of_a_mean_grows_with_the_spread(deviation: float) -> None:
    values = np.random.default_rng(1).normal(3.0, deviation, 100)
    estimate = mean_with_interval(values)
    half_width = 0.5 * (estimate.high - estimate.low)
    assert half_width == pytest.approx(1.96 * deviation / 10, abs=0.03)


def test_stored_replays_come_back(tmp_path: Path) -> None:
    found = [method("one"), method("fast", replace(COSTS, training_s=0.01))]
    job = replayed(found, Setting("lanl-20", 8, has_spares=True), draws=5)
    replays = Replays("some-run", 5, [job])
    replays.write(tmp_path / "worth.json")
    assert read(tmp_path / "worth.json") == replays


def test_the_stored_replays_are_of_the_newest_run_and_of_every_job() -> None:
    stored = read()
    run, found = docs_worth.methods()
    assert stored.run == run
    assert [job.setting for job in stored.jobs] == docs_worth.settings()
    assert {len(job.methods) for job in stored.jobs} == {len(found)}


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.0123, 0.0111, 0.0139), "+1.23 [+1.11, +1.39]"),
        (Estimate(-0.00002, -0.00003, -0.00001), "-0.002 [-0.003, -0.001]"),
        (Estimate(0.01, -0.001, 0.03), "tie"),
        (Estimate(0.0, 0.0, 0.0), "tie"),
    ],
)
def test_the_pages_tell_ties_from_small_differences(estimate: Estimate, text: str) -> None:
    first = Worth("first", 0.5, Estimate(0.0, 0.0, 0.0))
    job = ReplayedJob(
        Setting("gpu-400", 8, has_spares=False), [first, replace(first, gain=estimate)], estimate
    )
    assert docs_worth._line(job)[-1] == text
    assert docs_worth._bursts([job]) == [["gpu-400", "8", text]]


def test_the_figure_shows_every_gain_and_hollow_ties() -> None:
    tie = Worth("same", 0.5, Estimate(0.001, -0.001, 0.003))
    gain = Worth("fast", 0.5, Estimate(0.02, 0.01, 0.03))
    first = Worth("first", 0.5, Estimate(0.0, 0.0, 0.0))
    jobs = [
        ReplayedJob(Setting("gpu-400", gpus, has_spares), [first, tie, gain], first.gain)
        for has_spares in (False, True)
        for gpus in (8, 16_384)
    ]
    drawn = worth_figure.draw(Replays("some-run", 5, jobs))
    above, below = drawn.figure.subfigs[0].axes
    assert (above.get_title("left"), below.get_title("left")) == (
        "gpu-400, without spares",
        "gpu-400, with spares",
    )
    names = [label.get_text() for label in above.get_xticklabels()]
    assert names == ["8\n50.0%", "16,384*\n50.0%"]
    _, labels = above.get_legend_handles_labels()
    assert labels == ["same", "fast"]
    heights = {tuple(line.get_ydata()) for line in above.lines if line.get_marker() == "o"}
    assert heights == {(0.1, 0.1)}
    hollow = [line for line in above.lines if line.get_markerfacecolor() == "white"]
    assert [tuple(line.get_ydata()) for line in hollow if len(line.get_ydata())] == [(0.1, 0.1)]
    assert "some-run" in drawn.caption
