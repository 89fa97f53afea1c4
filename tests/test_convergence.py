"""Policies that look at the loss, against what is known of the loss of a stopped job."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.analysis import stopped_jobs
from harness.intervals import policies, stopped
from harness.intervals.convergence import Coci, EndedByFailure, FittedCoci, LossCurve, fitted
from harness.intervals.costs import Costs
from harness.intervals.policies import Every, Policy
from harness.intervals.stopped import Job

HOUR = 3600.0
COST_S = 60.0
CURVE = LossCurve(-1.0 / (2 * HOUR), offset=0.5)
LENGTH_S = 24 * HOUR


def saves(policy: Policy) -> NDArray[np.float64]:
    return stopped.schedule(policy, LENGTH_S, step_s=10.0)


def expected_loss_where_a_failure_ends_it(saves_s: NDArray[np.float64], mtbf_s: float) -> float:
    """Sum up exactly: a failure leaves the loss of the last checkpoint that was taken."""
    taken_s = saves_s + COST_S * np.arange(1, len(saves_s) + 1)
    in_time = taken_s < LENGTH_S
    edges_s = np.array([0.0, *taken_s[in_time], LENGTH_S])
    losses = [CURVE.at(trained_s) for trained_s in (0.0, *saves_s[in_time])]
    survived = np.exp(-edges_s / mtbf_s)
    trained_s = LENGTH_S - COST_S * int(in_time.sum())
    return float(np.dot(losses, -np.diff(survived)) + survived[-1] * CURVE.at(trained_s))


def test_a_fit_finds_the_curve_of_noisy_losses() -> None:
    rng = np.random.default_rng(1)
    times_s = np.linspace(0, 4 * HOUR, 200)
    losses = [CURVE.at(time_s) * rng.uniform(0.95, 1.05) for time_s in times_s]
    curve = fitted(times_s.tolist(), losses)
    assert curve.slope == pytest.approx(CURVE.slope, rel=0.05)
    assert curve.offset == pytest.approx(CURVE.offset, abs=0.02)


def test_a_loss_that_rises_has_no_curve() -> None:
    with pytest.raises(ValueError, match="is not below 0, so the loss does not fall"):
        fitted([0, 1, 2], [1.0, 1.5, 2.0])
    with pytest.raises(ValueError, match="2 losses are too few"):
        fitted([0, 1], [2.0, 1.0])


def test_coci_takes_its_checkpoints_after_equal_drops_of_the_loss() -> None:
    policy = Coci(CURVE, COST_S, 6 * HOUR, unit_s=HOUR)
    saves_s = stopped.schedule(policy, LENGTH_S, step_s=1.0)
    drops = -np.diff([CURVE.at(saved_s) for saved_s in (0.0, *saves_s)])
    assert len(drops) > 10
    assert drops == pytest.approx(policy.drop, rel=0.01)
    intervals_s = np.diff(saves_s)
    assert intervals_s[-1] > 10 * intervals_s[0]


def test_the_drop_of_coci_has_the_unit_of_a_time() -> None:
    """The same job in hours instead of minutes has a drop that is 60 times smaller."""
    in_minutes = Coci(CURVE, COST_S, 6 * HOUR)
    in_hours = Coci(CURVE, COST_S, 6 * HOUR, unit_s=HOUR)
    assert in_minutes.drop == pytest.approx(60 * in_hours.drop)
    assert len(saves(in_minutes)) <= 1 < len(saves(in_hours))


def noisy(curve: LossCurve, seed: int = 1) -> Callable[[float], float]:
    rng = np.random.default_rng(seed)
    return lambda trained_s: curve.at(trained_s) * rng.uniform(0.995, 1.005)


def test_coci_that_fits_while_it_trains_comes_near_the_one_that_knows_the_curve() -> None:
    policy = FittedCoci(noisy(CURVE), COST_S, 6 * HOUR, unit_s=HOUR, first=100, later=500)
    fitted_s = saves(policy)
    known_s = saves(Coci(CURVE, COST_S, 6 * HOUR, unit_s=HOUR))
    assert len(fitted_s) == pytest.approx(len(known_s), rel=0.15)
    # Nothing is known of the loss until the first fit, after 100 steps of 10 s.
    assert fitted_s[0] > 1000.0 > known_s[0]


def test_a_fit_follows_a_loss_that_begins_to_fall_faster() -> None:
    """The losses until then are no part of the new fit."""
    faster = LossCurve(4 * CURVE.slope, CURVE.offset - 3 * CURVE.slope * HOUR)

    def loss_at(trained_s: float) -> float:
        return (CURVE if trained_s < HOUR else faster).at(trained_s)

    policy = FittedCoci(loss_at, COST_S, 6 * HOUR, unit_s=HOUR, first=100, later=260)
    stopped.schedule(policy, 0.9 * HOUR, step_s=10.0)
    assert policy.coci is not None
    assert policy.coci.curve.slope == pytest.approx(CURVE.slope)
    policy = FittedCoci(loss_at, COST_S, 6 * HOUR, unit_s=HOUR, first=100, later=260)
    stopped.schedule(policy, 4 * HOUR, step_s=10.0)
    assert policy.coci is not None
    assert policy.coci.curve.slope == pytest.approx(faster.slope, rel=0.1)


def test_the_threshold_of_a_new_curve_has_the_unit_of_a_rate() -> None:
    """A slope of 0.5 an hour is 0.008 a minute, and a change of 0.1 a minute is twelve times it."""

    def loss_at(trained_s: float) -> float:
        return 2.0 * CURVE.at(trained_s) if trained_s < 1000.0 else 1.9 * CURVE.at(trained_s)

    curves = []
    for unit_s in (60.0, HOUR):
        policy = FittedCoci(loss_at, COST_S, 6 * HOUR, unit_s=unit_s, first=50, later=100)
        stopped.schedule(policy, 1600.0, step_s=10.0)
        assert policy.coci is not None
        curves.append(policy.coci.curve.slope)
    in_minutes, in_hours = curves
    assert in_minutes == pytest.approx(CURVE.slope)
    assert in_hours != pytest.approx(CURVE.slope, rel=0.1)


def test_a_loss_that_does_not_fall_gets_no_checkpoint_from_coci() -> None:
    for loss_at in (lambda trained_s: 1.0 + trained_s, lambda _: -1.0):
        policy = FittedCoci(loss_at, COST_S, 6 * HOUR)
        assert len(stopped.schedule(policy, HOUR, step_s=10.0)) == 0


@pytest.mark.parametrize("losses", [[2.0, 1.0, 0.0], [2.0, 1.0, -1.0], [2.0, math.inf, 1.0]])
def test_a_curve_needs_losses_above_0(losses: list[float]) -> None:
    with pytest.raises(ValueError, match="a loss is not a finite number above 0"):
        fitted([0, 1, 2], losses)


def test_a_policy_that_looks_at_the_loss_refuses_wrong_values() -> None:
    with pytest.raises(ValueError, match="an MTBF of inf s is not a finite time above 0"):
        Coci(CURVE, COST_S, math.inf)
    with pytest.raises(ValueError, match="training_s is -1; a cost is a number of seconds"):
        EndedByFailure(CURVE, -1, HOUR, LENGTH_S)


@pytest.mark.parametrize("mtbf_h", [2, 24, 200])
def test_where_a_failure_ends_the_job_the_optimum_is_better_than_even_intervals(
    mtbf_h: float,
) -> None:
    mtbf_s = mtbf_h * HOUR
    best = expected_loss_where_a_failure_ends_it(
        saves(EndedByFailure(CURVE, COST_S, mtbf_s, LENGTH_S)), mtbf_s
    )
    young_s = policies.young_s(COST_S, mtbf_s)
    for factor in (0.35, 0.5, 0.7, 1.0, 1.4, 2.0):
        even = expected_loss_where_a_failure_ends_it(saves(Every(factor * young_s)), mtbf_s)
        # It is the optimum to the first order only, so a near one may be as good.
        assert best < even * 1.002


def test_that_optimum_begins_densely_and_ends_at_youngs_interval() -> None:
    policy = EndedByFailure(CURVE, COST_S, 24 * HOUR, LENGTH_S)
    assert policy.interval_s(LENGTH_S) == pytest.approx(policies.young_s(COST_S, 24 * HOUR))
    rate = 1 / (24 * HOUR) + 1 / (2 * HOUR)
    assert policy.interval_s(0.0) == pytest.approx(math.sqrt(2 * COST_S / rate), rel=0.01)


def test_without_failures_a_stopped_job_has_trained_all_but_its_checkpoints() -> None:
    job = Job(CURVE, Costs(training_s=COST_S), mtbf_s=1e15, stop_s=2 * HOUR)
    found = stopped.ends(job, np.array([1000.0, 2000.0]), 3, np.random.default_rng(0))
    assert found.loss == pytest.approx(CURVE.at(2 * HOUR - 2 * COST_S))
    delayed = sum(CURVE.at(at_s) - CURVE.at(at_s + COST_S) for at_s in (1000.0, 2000.0))
    assert found.undone == pytest.approx(delayed)


def test_where_failures_are_survived_young_is_best_by_both_figures() -> None:
    """Both figures weigh a checkpoint and a repeated step by the slope where they happen."""
    mtbf_s = 6 * HOUR
    job = Job(CURVE, Costs(training_s=COST_S, restart_s=120.0), mtbf_s, stop_s=6 * HOUR)
    young = Every(policies.young_s(COST_S, mtbf_s))
    coci = Coci(CURVE, COST_S, mtbf_s, unit_s=HOUR)
    ended = EndedByFailure(CURVE, COST_S, mtbf_s, LENGTH_S)
    of_young, of_coci, of_ended = (
        stopped.ends(job, saves(policy), 300, np.random.default_rng(2))
        for policy in (young, coci, ended)
    )
    assert of_young.loss.mean() < min(of_coci.loss.mean(), of_ended.loss.mean())
    assert of_young.undone.mean() < min(of_coci.undone.mean(), of_ended.undone.mean())


def test_a_checkpoint_that_is_not_durable_yet_does_not_count_for_a_stopped_job() -> None:
    costs = Costs(training_s=10.0, lag_s=1e6)
    job = Job(CURVE, costs, mtbf_s=100.0, stop_s=1e5, goes_on=False)
    found = stopped.ends(job, np.array([20.0, 40.0]), 20, np.random.default_rng(3))
    assert found.loss == pytest.approx(CURVE.at(0.0))


def test_jobs_with_different_schedules_meet_the_same_failures() -> None:
    """So their differences are paired. A job without checkpoints begins anew after a failure."""
    job = Job(CURVE, Costs(training_s=COST_S, restart_s=60.0), 6 * HOUR, 12 * HOUR)
    every = saves(Every(HOUR))
    once = stopped_jobs._ends(job, [every])
    shared = stopped_jobs._ends(job, [every] * stopped_jobs.FITS)
    assert np.array_equal(once.loss, shared.loss)
    never = stopped_jobs._ends(job, [every, np.array([])])
    half = stopped_jobs.DRAWS // 2
    assert np.array_equal(once.loss[:half], never.loss[:half])
    assert never.loss[half:].mean() > once.loss[half:].mean()


def test_coci_fits_other_batches_in_each_training() -> None:
    schedules = [
        stopped.schedule(stopped_jobs.fitted_coci(CURVE, 6 * HOUR, seed), HOUR, step_s=1.0)
        for seed in (1, 1, 2)
    ]
    assert np.array_equal(schedules[0], schedules[1])
    assert not np.array_equal(schedules[0], schedules[2])
