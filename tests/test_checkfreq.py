"""CheckFreq beside a training: its profile, its frequency, and how it adapts."""

from __future__ import annotations

import math

import pytest

from harness.intervals import policies
from harness.intervals.checkfreq import PROFILED_STEPS, WARM_UP_STEPS, ProfilingCheckFreq
from harness.intervals.costs import Costs

STEP_S = 0.1


class Training:
    """A training with steps of 0.1 s, of which the first ones take ten times as long."""

    def __init__(self, budget: float = policies.CHECKFREQ_BUDGET) -> None:
        self.policy = ProfilingCheckFreq(budget)
        self.steps = 0
        self.trained_s = 0.0
        self.slow_s = 0.0  # by which the first step after a save takes longer

    def until_save(self, stall_s: float, lag_s: float = 0.0) -> int:
        """Train until the policy saves. Return after how many steps it did."""
        count, work_s = 0, 0.0
        is_due = False
        while not is_due:
            step_s = STEP_S * (10 if self.steps < WARM_UP_STEPS else 1)
            step_s += self.slow_s if count == 0 else 0.0
            self.steps += 1
            count += 1
            work_s += step_s
            self.trained_s += step_s
            is_due = self.policy.checkpoint_now(work_s, self.trained_s)
        self.policy.saved(stall_s, lag_s)
        return count


def test_it_profiles_before_its_first_save() -> None:
    training = Training()
    assert training.policy.every is None
    assert training.until_save(stall_s=0.7) == WARM_UP_STEPS + PROFILED_STEPS


@pytest.mark.parametrize("budget", [0.035, 0.05, 0.5])
@pytest.mark.parametrize("stall_s", [0.013, 0.7, 2.0])
def test_it_takes_the_fewest_steps_that_keep_to_the_budget(budget: float, stall_s: float) -> None:
    training = Training(budget)
    training.until_save(stall_s)
    every = training.until_save(stall_s)
    assert stall_s / (every * STEP_S) <= budget * 1.001
    assert every == 1 or stall_s / ((every - 1) * STEP_S) > budget


def test_a_save_is_durable_before_the_next() -> None:
    training = Training()
    training.until_save(stall_s=0.01, lag_s=30.0)
    assert training.policy.every == 300


def test_constant_costs_lead_to_the_interval_from_known_costs() -> None:
    training = Training()
    training.until_save(stall_s=0.7, lag_s=3.0)
    for _ in range(5):
        every = training.until_save(stall_s=0.7, lag_s=3.0)
    known = policies.CheckFreq(Costs(training_s=0.7, lag_s=3.0))
    assert every * STEP_S == pytest.approx(known.interval_s)


def test_it_adds_two_steps_until_the_budget_is_kept_again() -> None:
    training = Training()
    training.until_save(stall_s=0.7)
    assert training.until_save(stall_s=0.84) == 200
    counts = [training.until_save(stall_s=0.84) for _ in range(40)]
    assert counts[:3] == [200, 202, 204]
    # 0.84 s is 3.5 % of 240 steps.
    assert counts[-1] == 240


def test_the_slowdown_of_steps_is_part_of_what_it_measures() -> None:
    training = Training()
    training.until_save(stall_s=0.7)
    training.slow_s = 0.14
    for _ in range(40):
        count = training.until_save(stall_s=0.7)
    assert count == 240


def test_a_training_that_saves_early_is_profiled_by_its_first_steps() -> None:
    policy = ProfilingCheckFreq(0.1)
    with pytest.raises(ValueError, match="take steps first"):
        policy.saved(1.0)
    policy.checkpoint_now(0.5, 0.5)
    policy.saved(1.0)
    assert policy.every == 20
    policy.saved(1.0)  # twice in a row
    assert policy.every == 20


def test_costs_that_fall_do_not_shorten_its_intervals() -> None:
    training = Training()
    training.until_save(stall_s=0.7)
    assert [training.until_save(stall_s=0.1) for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize("stall_s", [-1.0, math.nan, math.inf])
def test_a_stall_is_a_number_of_seconds(stall_s: float) -> None:
    training = Training()
    with pytest.raises(ValueError, match="stall_s is .*; a cost is a number of seconds from 0"):
        training.until_save(stall_s)


def test_its_budget_is_a_share() -> None:
    with pytest.raises(ValueError, match="a budget of 5 is not a share between 0 and 1"):
        ProfilingCheckFreq(budget=5)
