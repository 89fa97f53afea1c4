"""Policies, the expected and the replayed effective time, against answers that are known."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from harness.intervals import expected, failures, policies, replay
from harness.intervals.adaptive import Adaptive
from harness.intervals.costs import Costs
from harness.intervals.failures import NodeFailures

HOUR = 3600.0
COSTS = Costs(training_s=20, lag_s=60, restore_s=30, restart_s=100, detect_s=10)


def at(*instants_s: float, length_s: float = 1000.0, repair_s: float = 0.0) -> NodeFailures:
    """Failures of the only node."""
    count = len(instants_s)
    return NodeFailures(
        1,
        length_s,
        np.array(instants_s),
        np.zeros(count, dtype=int),
        np.full(count, repair_s),
        np.ones(count, dtype=bool),
    )


def replayed(found: NodeFailures, costs: Costs, interval_s: float, needed: int = 1) -> float:
    interruptions = replay.interruptions(found, needed)
    return float(replay.effective_shares(interruptions, [costs], np.array([[interval_s]]))[0, 0])


# Formulas


@pytest.mark.parametrize("ratio", [0.001, 0.05, 0.15, 0.5, 2.0])
def test_no_interval_is_better_than_the_oracle(ratio: float) -> None:
    costs = Costs(training_s=ratio * HOUR, lag_s=30, restart_s=60)
    best_s = policies.oracle_s(costs.training_s, HOUR)
    best = expected.effective_share(costs, best_s, HOUR)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert expected.effective_share(costs, factor * best_s, HOUR) < best


@pytest.mark.parametrize("ratio", [1e-30, 1e-9, 0.99e-6, 1.01e-6, 0.1, 3.0])
def test_the_oracle_solves_its_equation(ratio: float) -> None:
    """With x = tau / MTBF it is x + log(1 - x) = -ratio, or the sum of its powers in x."""
    share = policies.oracle_s(ratio, 1.0)
    powers = sum(share**power / power for power in range(2, 4000))
    assert powers == pytest.approx(ratio, rel=1e-9)


def test_the_oracle_is_youngs_interval_where_a_checkpoint_costs_next_to_nothing() -> None:
    for cost_s in (0.0, 1e-25, 1e-20, 1e-12):
        assert policies.oracle_s(cost_s, HOUR) == pytest.approx(policies.young_s(cost_s, HOUR))


def test_the_oracle_is_the_mtbf_where_a_checkpoint_takes_for_ever() -> None:
    assert policies.oracle_s(1e9, 1.0) == 1.0


COST = "training_s is .*; a cost is a number of seconds from 0"
MTBF = "an MTBF of .* s is not a finite time above 0"
BUDGET = "a budget of .* is not a share between 0 and 1"


@pytest.mark.parametrize("formula", policies.FORMULAS.values(), ids=policies.FORMULAS)
@pytest.mark.parametrize(
    ("cost_s", "mtbf_s", "message"),
    [
        (-1.0, 100.0, COST),
        (math.nan, 100.0, COST),
        (1.0, -5.0, MTBF),
        (1.0, 0.0, MTBF),
        (1.0, math.inf, MTBF),
    ],
)
def test_a_formula_refuses_wrong_values(
    formula: Callable[[float, float], float], cost_s: float, mtbf_s: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        formula(cost_s, mtbf_s)


@pytest.mark.parametrize(("interval_s", "mtbf_s"), [(0.0, HOUR), (60.0, 0.0), (60.0, -1.0)])
def test_a_share_refuses_wrong_times(interval_s: float, mtbf_s: float) -> None:
    for share in (expected.effective_share, expected.shares):
        with pytest.raises(ValueError, match="is not a finite time above 0"):
            share(COSTS, interval_s, mtbf_s)


def test_a_job_that_needs_more_nodes_than_there_are_is_refused() -> None:
    for needed in (0, 2):
        with pytest.raises(
            ValueError, match=f"the job needs {needed} nodes, and the failures are of 1; give"
        ):
            replay.interruptions(at(), needed)
    with pytest.raises(ValueError, match="a choice of 0 nodes is empty"):
        failures.chosen(at(), 0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="unknown trace 'lanl'; choose one of gpu-400"):
        failures.trace("lanl")


@pytest.mark.parametrize("budget", [0.0, -0.1, 1.0, math.nan])
def test_a_budget_is_a_share(budget: float) -> None:
    with pytest.raises(ValueError, match=BUDGET):
        policies.bounded_s(COSTS, HOUR, budget=budget)
    with pytest.raises(ValueError, match=BUDGET):
        policies.CheckFreq(COSTS, budget)


def test_an_unknown_policy_is_told_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="unknown policy 'yung'; choose one of oracle, young, daly"
    ):
        policies.bounded_s(COSTS, HOUR, formula="yung")


def test_levels_need_a_cost_and_a_rate_each() -> None:
    with pytest.raises(ValueError, match="2 costs and 1 rates"):
        policies.levels_s([1.0, 2.0], [0.1])
    with pytest.raises(ValueError, match="a rate of 0.0 is not a finite number above 0"):
        policies.levels_s([1.0], [0.0])


@pytest.mark.parametrize("interval_s", [0.0, -1.0, math.inf, math.nan])
def test_an_interval_is_a_finite_time(interval_s: float) -> None:
    with pytest.raises(ValueError, match="an interval of .* s is not a finite time above 0"):
        policies.Every(interval_s)


@pytest.mark.parametrize(("ratio", "points"), [(0.05, 0.5), (0.15, 0.5), (0.5, 1.5)])
def test_young_loses_little_against_the_oracle(ratio: float, points: float) -> None:
    costs = Costs(training_s=ratio * HOUR)
    best = expected.effective_share(costs, policies.oracle_s(ratio * HOUR, HOUR), HOUR)
    young = expected.effective_share(costs, policies.young_s(ratio * HOUR, HOUR), HOUR)
    assert 0 < 100 * (best - young) < points
    daly = expected.effective_share(costs, policies.daly_s(ratio * HOUR, HOUR), HOUR)
    assert daly > young


def test_daly_takes_the_mtbf_where_a_checkpoint_takes_twice_as_long() -> None:
    assert policies.daly_s(2 * HOUR, HOUR) == HOUR


def test_the_lag_and_the_budget_bound_the_interval() -> None:
    costs = Costs(training_s=1, lag_s=500)
    assert policies.bounded_s(costs, HOUR) == 500
    assert policies.bounded_s(costs, HOUR, budget=0.001) == 1000


def test_two_levels_have_intervals_of_their_own() -> None:
    fast_s, slow_s = policies.levels_s([1.0, 50.0], [1 / HOUR, 1 / (100 * HOUR)])
    assert fast_s == pytest.approx(math.sqrt(2 * HOUR))
    assert slow_s == pytest.approx(math.sqrt(100 * 100 * HOUR))


def test_checkfreq_keeps_to_its_budget_and_to_the_lag() -> None:
    assert policies.CheckFreq(Costs(training_s=7, lag_s=10), 0.035).interval_s == pytest.approx(200)
    assert policies.CheckFreq(Costs(training_s=0.1, lag_s=10), 0.035).interval_s == 10
    assert not policies.CheckFreq(Costs(training_s=7), 0.035).checkpoint_now(199.9, 1e6)


def test_every_and_never_answer_for_the_work_since_the_last_checkpoint() -> None:
    assert policies.Every(10).checkpoint_now(10, 10)
    assert not policies.Every(10).checkpoint_now(9.9, 1e6)
    assert not policies.Never().checkpoint_now(1e9, 1e9)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_a_cost_is_a_number_of_seconds(value: float) -> None:
    with pytest.raises(ValueError, match=r"lag_s is .*; a cost is a number of seconds from 0"):
        Costs(training_s=1, lag_s=value)


# Shares


@pytest.mark.parametrize("interval_s", [10.0, 300.0, 3 * HOUR])
def test_the_shares_add_up(interval_s: float) -> None:
    shares = expected.shares(COSTS, interval_s, HOUR)
    parts = sum(getattr(shares, part) for part in expected.PARTS)
    assert shares.effective + parts == pytest.approx(1.0)
    assert shares.lost == pytest.approx(parts)
    # A failure in the detection begins it again, so the restart has less than its ten parts.
    assert 9.8 < shares.restart / shares.detect < 10


def test_without_costs_and_failures_nothing_is_lost() -> None:
    shares = expected.shares(Costs(training_s=0), 1.0, 1e15)
    assert shares.effective == pytest.approx(1.0)
    assert replayed(at(), Costs(training_s=0), 1.0) == pytest.approx(1.0)


def test_an_interval_far_beyond_the_mtbf_trains_nothing() -> None:
    assert expected.effective_share(COSTS, 1e6 * HOUR, HOUR) == 0.0


def test_the_flat_part_ends_where_half_a_point_is_lost() -> None:
    best_s = policies.oracle_s(COSTS.training_s, HOUR)
    low_s, high_s = expected.flat_from_to(COSTS, best_s, HOUR)
    best = expected.effective_share(COSTS, best_s, HOUR)
    assert low_s < best_s < high_s
    assert best - expected.effective_share(COSTS, high_s, HOUR) == pytest.approx(0.005)


# Replay


def test_what_is_durable_at_a_failure_is_kept() -> None:
    """Two checkpoints are durable at 250 s; the recovery ends at 300 s; 7 segments fit in 700 s."""
    costs = Costs(training_s=10, restart_s=50)
    kept_s = 2 * 90 + 7 * 90
    assert replayed(at(250), costs, 90) == pytest.approx(kept_s / 1000)


def test_a_checkpoint_that_is_not_durable_yet_does_not_count() -> None:
    without = Costs(training_s=10, restart_s=50)
    late = Costs(training_s=10, restart_s=50, lag_s=51)
    lost_s = 1000 * (replayed(at(250), without, 90) - replayed(at(250), late, 90))
    assert lost_s == pytest.approx(90)


def test_a_failure_in_a_recovery_begins_it_again() -> None:
    costs = Costs(training_s=10, restart_s=50)
    kept_s = 2 * 90 + 6 * 90 + 70
    assert replayed(at(250, 280), costs, 90) == pytest.approx(kept_s / 1000)


def test_failures_of_one_instant_are_one_interruption() -> None:
    found = replay.interruptions(at(100, 100), needed=1)
    assert found.at_s.tolist() == [100]


def test_a_job_without_spares_waits_for_the_repair() -> None:
    found = replay.interruptions(at(100, repair_s=40), needed=1)
    assert found.wait_s.tolist() == [40]


def test_a_spare_takes_over_at_once_and_interrupts_nothing_when_it_fails() -> None:
    nodes = NodeFailures(
        2,
        1000.0,
        np.array([50.0, 100.0, 300.0]),
        np.array([1, 0, 0]),
        np.array([10.0, 500.0, 1.0]),
        np.ones(3, dtype=bool),
    )
    found = replay.interruptions(nodes, needed=1)
    assert (found.at_s.tolist(), found.wait_s.tolist()) == ([100], [0])


def test_a_quiet_failure_interrupts_nothing() -> None:
    quiet = at(100)
    quiet.interrupts[:] = False
    assert replay.interruptions(quiet, needed=1).at_s.tolist() == []


@pytest.mark.parametrize(("repair_days", "share"), [(1, 1 / 21), (20, 0.5)])
def test_as_many_nodes_are_under_repair_at_the_start_as_later(
    repair_days: float, share: float
) -> None:
    day_s = 24 * HOUR
    rates = failures.RandomFailures(1 / (20 * day_s), 0.0, repair_days * day_s)
    rng = np.random.default_rng(1)
    draws = [rates.draw(100, 100, rng) for _ in range(200)]
    broken = [len(nodes.under_repair) for nodes in draws]
    assert np.mean(broken) == pytest.approx(100 * share, rel=0.1)
    # Nobody pays for a broken node.
    paid_share = np.mean([nodes.paid_node_s / (100 * nodes.length_s) for nodes in draws])
    assert paid_share == pytest.approx(1 - share, rel=0.03)


def test_a_node_under_repair_does_not_fail_again() -> None:
    rates = failures.RandomFailures(1 / HOUR, 0.0, repair_s=HOUR)
    nodes = rates.draw(5, 5, np.random.default_rng(1))
    until_s = dict(nodes.under_repair)
    for at_s, node, repair_s, _, _ in nodes.events():
        assert at_s >= until_s.get(node, 0.0)
        until_s[node] = at_s + repair_s


def test_a_job_meets_its_own_failures_as_often_with_spares_as_without() -> None:
    rates = failures.RandomFailures(0.0, job_rate_s=1 / (6 * HOUR), repair_s=HOUR)
    for spares in (0, 3):
        rng = np.random.default_rng(1)
        draws = [rates.draw(4 + spares, 4, rng) for _ in range(20)]
        counts = [len(replay.interruptions(nodes, needed=4).at_s) for nodes in draws]
        assert np.mean(counts) == pytest.approx(174 * 4, rel=0.03)


def test_fewer_nodes_meet_the_failures_that_more_nodes_meet() -> None:
    rates = failures.RandomFailures(1 / (30 * HOUR), 1 / (50 * HOUR), repair_s=9 * HOUR)
    more = rates.draw(6, 4, np.random.default_rng(1))
    fewer = failures.of_first_nodes(more, 4)
    assert fewer.nodes == 4
    assert list(fewer.events()) == [event for event in more.events() if event[1] < 4]
    assert set(fewer.under_repair) == {node for node in more.under_repair if node < 4}


@pytest.mark.parametrize("interval_s", [60.0, 250.0, 1500.0])
def test_the_replay_of_random_failures_is_what_is_expected(interval_s: float) -> None:
    rng = np.random.default_rng(1)
    found = failures.drawn(1, 20_000 * HOUR, rng, rate_per_node_s=1 / HOUR)
    found.repair_s[:] = 0.0
    simulated = replayed(found, COSTS, interval_s)
    assert simulated == pytest.approx(expected.effective_share(COSTS, interval_s, HOUR), abs=0.005)


def test_the_parts_of_a_replay_of_random_failures_are_those_that_are_expected() -> None:
    rng = np.random.default_rng(1)
    found = failures.drawn(1, 20_000 * HOUR, rng, rate_per_node_s=1 / HOUR)
    found.repair_s[:] = 0.0
    struck = replay.interruptions(found, needed=1)
    parts = replay.shares(struck, [COSTS], np.array([[250.0]]))
    formula = expected.shares(COSTS, 250.0, HOUR)
    for name, value in parts.items():
        assert float(value[0]) == pytest.approx(getattr(formula, name), abs=0.003), name
    assert formula.checkpoints > 0.01
    assert formula.recompute > 0.01


def test_no_interval_is_better_in_the_replay_than_the_oracle() -> None:
    best_s = policies.oracle_s(COSTS.training_s, HOUR)
    factors = np.array([0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0])
    rng = np.random.default_rng(4)
    by_draw = []
    for _ in range(40):
        found = failures.drawn(1, 1000 * HOUR, rng, rate_per_node_s=1 / HOUR)
        found.repair_s[:] = 0.0
        struck = replay.interruptions(found, needed=1)
        by_draw.append(replay.effective_shares(struck, [COSTS], (best_s * factors)[None, :])[0])
    gains = np.array(by_draw) - np.array(by_draw)[:, [3]]
    errors = gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
    assert (gains.mean(axis=0) <= 2 * errors).all()
    # The intervals at both ends are worse beyond doubt.
    assert (gains.mean(axis=0)[[0, -1]] < -5 * errors[[0, -1]]).all()


# Failures


@pytest.mark.parametrize(("name", "rows"), [("gpu-400", 584), ("lanl-18", 3997), ("lanl-20", 2478)])
def test_a_trace_has_its_failures_in_order(name: str, rows: int) -> None:
    trace = failures.trace(name)
    assert len(trace.at_s) == rows
    assert all(first <= second for first, second in pairwise(trace.at_s.tolist()))
    assert trace.at_s[-1] < trace.length_s
    assert trace.node.max() < trace.nodes
    per_1000_node_days = trace.rate_per_node_s * 86_400 * 1000
    assert 3.0 < per_1000_node_days < 4.3


def test_failures_of_one_instant_interrupt_a_job_once() -> None:
    trace = failures.trace("lanl-20")
    instants = len(set(trace.at_s[trace.interrupts].tolist()))
    assert instants < 0.97 * trace.interrupts.sum()
    whole = trace.rate_of_job_s(trace.nodes)
    assert whole == pytest.approx(instants / trace.length_s)
    assert trace.rate_of_job_s(1) == pytest.approx(trace.rate_per_node_s, rel=0.01)
    rng = np.random.default_rng(7)
    chosen = [failures.chosen(trace, 128, rng) for _ in range(100)]
    counted = [len(set(each.at_s[each.interrupts].tolist())) for each in chosen]
    assert trace.rate_of_job_s(128) == pytest.approx(np.mean(counted) / trace.length_s, rel=0.03)
    # More nodes than there are meet copies at other instants.
    assert trace.rate_of_job_s(2 * trace.nodes) == pytest.approx(2 * whole)


def test_stress_tests_interrupt_no_job() -> None:
    trace = failures.trace("gpu-400")
    assert int((~trace.interrupts).sum()) == 97 + 14


def test_a_choice_of_nodes_has_its_part_of_the_failures() -> None:
    trace = failures.trace("lanl-20")
    rng = np.random.default_rng(3)
    counts = [len(failures.chosen(trace, 128, rng).at_s) for _ in range(200)]
    assert np.mean(counts) == pytest.approx(len(trace.at_s) / 4, rel=0.1)


def test_more_nodes_than_a_trace_has_are_copies_at_other_instants() -> None:
    trace = failures.trace("lanl-20")
    found = failures.chosen(trace, 1024, np.random.default_rng(3))
    assert len(found.at_s) == 2 * len(trace.at_s)
    assert found.node.max() >= 512


def broken_at_the_start(nodes: int, **repaired_s: float) -> NodeFailures:
    """Nodes that never fail, some of which are broken at the start: node1=50.0."""
    empty = np.array([])
    under_repair = {int(name.removeprefix("node")): at_s for name, at_s in repaired_s.items()}
    none = empty.astype(int)
    return NodeFailures(nodes, 1000.0, empty, none, empty, empty.astype(bool), under_repair)


def test_a_repair_that_goes_on_at_the_start_of_a_choice_is_part_of_it() -> None:
    """One node fails once, and its repair takes half of the ring."""
    trace = at(300, length_s=1000.0, repair_s=500.0)
    rng = np.random.default_rng(4)
    found = [failures.chosen(trace, 1, rng) for _ in range(400)]
    broken = [each for each in found if each.under_repair]
    assert len(broken) == pytest.approx(200, abs=40)
    for each in broken:
        # The ring begins while the repair goes on, so the failure itself comes at its end.
        assert each.under_repair[0] == pytest.approx(each.at_s[0] + 500.0 - 1000.0)


def test_a_share_of_the_nodes_of_a_trace_is_under_repair_at_the_start() -> None:
    trace = failures.trace("gpu-400")
    rng = np.random.default_rng(3)
    counts = [len(failures.chosen(trace, 400, rng).under_repair) for _ in range(200)]
    repairs_s = trace.repair_s[trace.interrupts].sum()
    # Repairs of one node overlap now and then, and count once.
    assert 0.7 < np.mean(counts) / (repairs_s / trace.length_s) <= 1.05


def test_a_stress_test_at_the_start_keeps_no_job_from_it() -> None:
    trace = at(300, repair_s=1e9)
    trace.interrupts[:] = False
    assert not failures.chosen(trace, 1, np.random.default_rng(0)).under_repair


def test_a_job_that_lacks_nodes_at_the_start_waits_for_the_first_repairs() -> None:
    nodes = broken_at_the_start(4, node0=50.0, node2=20.0, node3=400.0)
    assert [replay.interruptions(nodes, needed).begin_s for needed in (1, 2, 3, 4)] == [
        0.0,
        20.0,
        50.0,
        400.0,
    ]
    costs = Costs(training_s=10, restart_s=50)
    # Its first start is no recovery.
    assert replayed(nodes, costs, 90.0, needed=4) == pytest.approx(6 * 90 / 1000)


def test_a_node_that_is_broken_at_the_start_becomes_a_spare_when_it_is_repaired() -> None:
    nodes = NodeFailures(
        2,
        1000.0,
        np.array([100.0, 300.0]),
        np.array([0, 1]),
        np.array([1e9, 1e9]),
        np.ones(2, dtype=bool),
        {1: 150.0},
    )
    found = replay.interruptions(nodes, needed=1)
    assert (found.at_s.tolist(), found.wait_s[0]) == ([100, 300], 50)


def test_the_halves_of_a_trace_have_all_of_it() -> None:
    trace = failures.trace("lanl-18")
    first, second = failures.halves(trace)
    assert len(first.at_s) + len(second.at_s) == len(trace.at_s)
    assert second.at_s[0] >= 0
    assert second.at_s[-1] < second.length_s


@pytest.mark.parametrize("shape", [0.6, 1.0])
def test_drawn_failures_have_their_rate(shape: float) -> None:
    rng = np.random.default_rng(5)
    found = failures.drawn(500, 2000 * 86_400.0, rng, shape=shape)
    assert found.rate_per_node_s == pytest.approx(failures.NODE_FAILURES_PER_S, rel=0.1)


def test_the_parts_of_a_replay_add_up_and_have_its_effective_share() -> None:
    trace = failures.chosen(failures.trace("gpu-400"), 64, np.random.default_rng(3))
    found = replay.interruptions(trace, 60)
    costs = [Costs(5.0, 20.0, 30.0, 600.0, 10.0), Costs(0.0)]
    intervals_s = np.array([[900.0], [60.0]])
    parts = replay.shares(found, costs, intervals_s)
    assert sum(parts.values()) == pytest.approx(1.0)
    shares = replay.effective_shares(found, costs, intervals_s)[:, 0]
    assert parts["effective"] == pytest.approx(shares)


def test_every_second_of_a_replay_is_in_its_part() -> None:
    """A failure at 250 s undoes 50 s. The next one comes in the restore and begins all again."""
    found = replay.Interruptions(np.array([250.0, 300.0]), np.array([5.0, 7.0]), 1000.0)
    costs = Costs(training_s=20.0, restore_s=30.0, restart_s=20.0, detect_s=2.0)
    parts = replay.shares(found, [costs], np.array([[80.0]]))
    seconds = {name: round(1000 * float(value[0])) for name, value in parts.items()}
    assert seconds == {
        "detect": 4,
        "wait": 12,
        "restart": 40,
        "restore": 53,
        "effective": 681,
        "checkpoints": 160,
        "recompute": 50,
    }


def test_a_node_under_repair_is_not_paid_for() -> None:
    """A node that is broken cannot break again, and a stress test is paid for."""
    found = failures.NodeFailures(
        nodes=2,
        length_s=100.0,
        at_s=np.array([10.0, 15.0, 40.0, 90.0]),
        node=np.array([0, 0, 1, 1]),
        repair_s=np.array([20.0, 20.0, 7.0, 50.0]),
        interrupts=np.array([True, True, False, True]),
    )
    assert found.paid_node_s == 200 - 20 - 10


# The adaptive policy, on a clock that is turned by hand


class Loop:
    """A training loop with steps of 0.1 s, whose saves take as long as they are told to."""

    def __init__(self, budget: float, mtbf_s: float = 10 * HOUR) -> None:
        self.now_s = 0.0
        self.pacer = Adaptive(mtbf_s, budget, clock=lambda: self.now_s)
        self.intervals: list[tuple[float, float]] = []
        self.slow_s = 0.0  # by which the steps after a save are longer, all together
        self.wait_s = 0.0  # of the first step after a save
        self.validation_at_s = math.inf
        self.rng: np.random.Generator | None = None
        self.noise: np.random.Generator | None = None  # of a tenth of each step

    def validate_at(self, in_s: float) -> None:
        self.validation_at_s = self.now_s + in_s

    def step(self, number: int) -> None:
        self.now_s += 0.1
        if self.noise is not None:
            self.now_s += 0.01 * self.noise.standard_normal()
        if number == 0:
            self.now_s += self.wait_s
        if number < 10:
            self.now_s += self.slow_s / 10
        if self.now_s >= self.validation_at_s:
            self.now_s += 15.0
            self.validation_at_s = math.inf
        if self.rng is not None and self.rng.random() < 1 / 3:
            self.now_s += 0.9

    def train(self, saves: int, stall_s: float) -> None:
        for _ in range(saves):
            begin_s = self.now_s
            self.step(0)
            number = 1
            while not self.pacer.checkpoint_now():
                self.step(number)
                number += 1
            trained_s = self.now_s - begin_s
            with self.pacer.saving():
                self.now_s += stall_s
            self.intervals.append((trained_s, stall_s))

    def fail_to_save(self, in_background: bool) -> None:
        with self.pacer.saving(in_background):
            self.now_s += 1.0
            raise OSError("No space left on device")


@pytest.mark.parametrize("after_s", [0.1, 1.0, 5.0])
def test_the_cost_keeps_to_the_budget_after_a_change(after_s: float) -> None:
    """The disk becomes five times slower, or faster, and any 20 later intervals keep to it.

    Failures are so frequent that the budget, and not they, bounds the interval.
    """
    loop = Loop(budget=0.035, mtbf_s=60.0)
    loop.train(30, stall_s=1.0)
    loop.train(60, stall_s=after_s)
    # The save at the change was in flight before anybody could know.
    later = loop.intervals[31:]
    # Twenty costs, and the twenty trainings that follow them.
    for first in range(len(later) - 20):
        window = later[first : first + 21]
        # An interval pays for the save with which it began.
        trained_s = sum(trained for trained, _ in window[1:])
        spent_s = sum(stall for _, stall in window[:-1])
        assert spent_s / trained_s <= 0.035 * 1.001


class BackgroundLoop(Loop):
    """A training loop whose saves go on in the background, and make steps longer by half."""

    def __init__(self, budget: float, mtbf_s: float) -> None:
        super().__init__(budget, mtbf_s)
        self.lag_s = 0.0
        self.slowed_s = 0.0
        self.over_at_s = -math.inf
        self.tell_over: Callable[[], None] = lambda: None

    def step(self, number: int) -> None:
        """Take 0.1 s, or 0.15 s while a save goes on."""
        is_disturbed = self.now_s < self.over_at_s
        self.now_s += 0.15 if is_disturbed else 0.1
        self.slowed_s += 0.05 if is_disturbed else 0.0
        if self.now_s >= self.over_at_s:
            self.tell_over()

    def train(self, saves: int, stall_s: float) -> None:
        for _ in range(saves):
            begin_s = self.now_s
            self.slowed_s = 0.0
            self.step(0)
            while not self.pacer.checkpoint_now():
                self.step(0)
            assert self.now_s >= self.over_at_s
            trained_s = self.now_s - begin_s - self.slowed_s
            # The stall of the save came before these steps.
            self.intervals.append((trained_s, self.slowed_s + stall_s))
            with self.pacer.saving(in_background=True) as self.tell_over:
                self.now_s += stall_s
            self.over_at_s = self.now_s + self.lag_s


@pytest.mark.parametrize("after_s", [1.0, 60.0, 300.0])
def test_the_cost_of_saves_in_the_background_keeps_to_the_budget(after_s: float) -> None:
    """The disk becomes slower, or faster, so saves take another time in the background."""
    loop = BackgroundLoop(budget=0.1, mtbf_s=60.0)
    loop.lag_s = 12.0
    loop.train(30, stall_s=0.1)
    loop.lag_s = after_s
    loop.train(60, stall_s=0.1)
    later = loop.intervals[31:]
    for first in range(len(later) - 20):
        window = later[first : first + 20]
        trained_s = sum(trained for trained, _ in window)
        spent_s = sum(cost for _, cost in window)
        assert spent_s / trained_s <= 0.1 * 1.001


def test_no_save_begins_before_the_one_before_is_over() -> None:
    loop = Loop(budget=0.5)
    loop.train(3, stall_s=1.0)
    with loop.pacer.saving(in_background=True) as over:
        pass
    for _ in range(10):
        loop.now_s += HOUR
        assert not loop.pacer.checkpoint_now()
    over()
    loop.now_s += HOUR
    # This step began before the save was over, so no step tells yet how long others take.
    assert not loop.pacer.checkpoint_now()
    loop.now_s += HOUR
    loop.pacer.checkpoint_now()
    loop.now_s += HOUR
    assert loop.pacer.checkpoint_now()


@pytest.mark.parametrize("in_background", [False, True])
def test_a_save_that_fails_is_paid_for_and_not_tried_again_at_once(in_background: bool) -> None:
    """A script may go on without a checkpoint when the disk is full."""
    loop = Loop(budget=0.1)
    loop.train(3, stall_s=1.0)
    with pytest.raises(OSError, match="No space"):
        loop.fail_to_save(in_background)
    loop.step(0)
    assert not loop.pacer.checkpoint_now()
    assert loop.pacer.interval_s == pytest.approx(policies.oracle_s(1.0, 10 * HOUR))
    loop.train(1, stall_s=1.0)


def test_the_interval_follows_the_costs() -> None:
    loop = Loop(budget=0.5)
    loop.train(30, stall_s=1.0)
    before_s = loop.pacer.interval_s
    loop.train(30, stall_s=9.0)
    assert loop.pacer.interval_s == pytest.approx(3 * before_s, rel=0.05)
    assert before_s == pytest.approx(policies.oracle_s(1.0, 10 * HOUR))


def test_steps_that_are_slower_after_a_save_are_a_cost_of_it() -> None:
    loop = Loop(budget=0.5)
    loop.train(5, stall_s=1.0)
    without_s = loop.pacer.interval_s
    loop.slow_s = 3.0
    loop.train(30, stall_s=1.0)
    with_s = loop.pacer.interval_s
    assert with_s == pytest.approx(policies.oracle_s(4.0, 10 * HOUR), rel=0.02)
    assert with_s > 1.5 * without_s


def test_steps_that_vary_by_themselves_do_not_lengthen_the_interval_without_end() -> None:
    """A third of the steps takes ten times as long, which no save is the cause of."""
    loop = Loop(budget=0.1)
    loop.rng = np.random.default_rng(3)
    loop.train(60, stall_s=1.0)
    intervals_s = [trained for trained, _ in loop.intervals[20:]]
    assert np.median(intervals_s) < 2.5 * policies.oracle_s(1.0, 10 * HOUR)


def test_steps_that_vary_by_chance_do_not_hide_what_saves_cost() -> None:
    """An interval may end where its slowdown seems small by chance.

    Over many intervals, the cost is within the budget all the same.
    """
    loop = Loop(budget=0.035, mtbf_s=60.0)
    loop.noise = np.random.default_rng(5)
    loop.train(400, stall_s=0.35)
    spent_s = sum(stall for _, stall in loop.intervals[20:-1])
    trained_s = sum(trained for trained, _ in loop.intervals[21:])
    assert 0.03 < spent_s / trained_s <= 0.035


@pytest.mark.parametrize("late", [False, True])
def test_a_validation_in_the_loop_is_no_cost_of_a_save(late: bool) -> None:
    """It comes early in an interval, or late, and takes as long as half of its steps."""
    loop = Loop(budget=0.035, mtbf_s=60.0)
    loop.train(30, stall_s=1.0)
    usual_s = loop.pacer.interval_s
    for _ in range(5):
        loop.validate_at(0.8 * usual_s if late else 0.1 * usual_s)
        loop.train(4, stall_s=1.0)
        assert loop.pacer.interval_s == pytest.approx(usual_s, rel=0.3)


def test_the_first_step_may_wait_for_the_save() -> None:
    """The device may still copy, so the step after the block waits."""
    loop = Loop(budget=0.5)
    loop.train(5, stall_s=0.1)
    loop.wait_s = 4.0
    loop.train(30, stall_s=0.1)
    assert loop.pacer.interval_s == pytest.approx(policies.oracle_s(4.1, 10 * HOUR), rel=0.02)


def test_two_saves_without_a_step_between_are_paid_for() -> None:
    loop = Loop(budget=0.1)
    loop.train(5, stall_s=1.0)
    with loop.pacer.saving():
        loop.now_s += 1.0
    with loop.pacer.saving():
        loop.now_s += 1.0
    assert loop.pacer.interval_s >= 20.0
    loop.train(3, stall_s=1.0)


def test_a_save_that_costs_nothing_leaves_an_interval() -> None:
    loop = Loop(budget=0.1)
    loop.train(3, stall_s=1e-18)
    assert math.isfinite(loop.pacer.interval_s)


def test_a_training_script_needs_the_standard_library_alone() -> None:
    """An environment of a framework may lack scipy and numpy. `-S` leaves out all packages."""
    root = str(Path(__file__).resolve().parents[1])
    script = "from harness.intervals.adaptive import Adaptive; Adaptive(mtbf_s=60)"
    command = [sys.executable, "-S", "-c", script]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": root}, cwd="/", check=True)


@pytest.mark.parametrize(
    ("mtbf_s", "budget", "message"),
    [(0.0, 0.1, MTBF), (math.inf, 0.1, MTBF), (math.nan, 0.1, MTBF), (1.0, 1.5, BUDGET)],
)
def test_wrong_values_are_refused(mtbf_s: float, budget: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Adaptive(mtbf_s=mtbf_s, budget=budget)


def test_nodes_under_repair_at_the_start_are_not_paid_for_and_waited_for() -> None:
    """One of two nodes comes back after 40 of 100 s, and the other one never fails."""
    broken = failures.NodeFailures(
        nodes=2,
        length_s=100.0,
        at_s=np.array([60.0]),
        node=np.array([0]),
        repair_s=np.array([30.0]),
        interrupts=np.array([True]),
        under_repair={1: 40.0},
        of_process=np.array([True]),
    )
    # The failure is the death of a process, so its node stays.
    assert broken.paid_node_s == 200.0 - 40.0
    found = replay.interruptions(broken, needed=2)
    parts = replay.shares(found, [Costs(training_s=0.0)], np.array([[1.0]]))
    assert parts["wait"][0] == pytest.approx(0.4)
    assert sum(part[0] for part in parts.values()) == pytest.approx(1.0)
