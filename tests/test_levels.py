"""Several levels of checkpoints, and jobs that shrink, against answers that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.intervals import elastic, failures, levels, replay
from harness.intervals.costs import Costs
from harness.intervals.failures import NodeFailures
from harness.intervals.levels import Failure, Level

HOUR = 3600.0
MEMORY = Level("memory", Costs(training_s=2, restore_s=1, restart_s=60), frozenset({"process"}))
FILES = Level(
    "files",
    Costs(training_s=30, lag_s=40, restore_s=60, restart_s=60),
    frozenset({"process", "node"}),
    every=4,
)


def nodes_of(*events: tuple[float, int, float], nodes: int, length_s: float) -> NodeFailures:
    """Failures: instant, node, seconds of repair."""
    at_s, node, repair_s = zip(*events, strict=True)
    return NodeFailures(
        nodes,
        length_s,
        np.array(at_s),
        np.array(node),
        np.array(repair_s),
        np.ones(len(events), dtype=bool),
    )


# Levels


def test_one_level_that_survives_everything_is_the_replay_of_one() -> None:
    rng = np.random.default_rng(4)
    at_s = np.sort(rng.uniform(0.0, 1000 * HOUR, 400))
    costs = Costs(training_s=20, lag_s=70, restore_s=30, restart_s=100, detect_s=5)
    only = Level("files", costs, frozenset({"node"}))
    found = [Failure(float(each), "node") for each in at_s]
    interruptions = replay.Interruptions(at_s, np.zeros(400), 1000 * HOUR)
    wanted = replay.effective_shares(interruptions, [costs], np.array([[900.0]]))[0, 0]
    assert levels.effective_share(found, 1000 * HOUR, [only], 900.0) == pytest.approx(wanted)


def test_memory_survives_the_death_of_a_process() -> None:
    """Checkpoints after 10 s: 12, 24, 36, then 78 s with the files, 90 s. The kill comes at 95."""
    kept = levels.effective_share([Failure(95.0, "process")], 200.0, [MEMORY, FILES], 10.0)
    # Five are in memory. From 156 s on there are three more, the last of which has the files too.
    assert kept == pytest.approx((50 + 3 * 10) / 200)


def test_memory_dies_with_its_node() -> None:
    """The fourth checkpoint is on the disk only at 118 s, a lag after its end at 78 s."""
    early = levels.effective_share([Failure(95.0, "node")], 200.0, [MEMORY, FILES], 10.0)
    late = levels.effective_share([Failure(119.0, "node")], 300.0, [MEMORY, FILES], 10.0)
    # Nothing is left at 95 s, so all begins anew at 155 s without a restore: 3 in 36 s, and 9 s.
    assert early == pytest.approx((3 * 10 + 9) / 200)
    # From 239 s on: five more of 12 s from the fourth on, but the eighth has the files too.
    assert late == pytest.approx((40 + 3 * 10 + 10) / 300)


def test_a_node_that_fails_in_a_restore_from_memory_sends_the_job_to_the_files() -> None:
    pair = [Failure(150.0, "process"), Failure(170.0, "node")]
    both = levels.effective_share(pair, 300.0, [MEMORY, FILES], 10.0)
    # Back at 290 s from the fourth checkpoint.
    assert both == pytest.approx((40 + 10) / 300)


def test_the_wait_for_a_node_comes_before_the_restore() -> None:
    without = levels.effective_share([Failure(119.0, "node")], 1000.0, [MEMORY, FILES], 10.0)
    waiting = [Failure(119.0, "node", wait_s=400.0)]
    assert levels.effective_share(waiting, 1000.0, [MEMORY, FILES], 10.0) < without - 0.15


def test_no_other_pair_of_intervals_is_much_better_than_that_of_the_formula() -> None:
    rates = {"process": 1 / HOUR, "node": 1 / (50 * HOUR)}
    length_s = 30_000 * HOUR
    found = levels.drawn(rates, length_s, np.random.default_rng(6))
    interval_s, best = levels.best_levels([MEMORY, FILES], list(rates.values()))
    share = levels.effective_share(found, length_s, best, interval_s)
    for factor in (0.25, 4.0):
        assert levels.effective_share(found, length_s, best, factor * interval_s) < share
    files = best[1]
    for every in (1, 8 * files.every):
        other = [best[0], Level("files", files.costs, files.survives, every)]
        assert levels.effective_share(found, length_s, other, interval_s) < share


def test_a_second_level_is_worth_more_than_it_costs_where_processes_die_often() -> None:
    rates = {"process": 1 / HOUR, "node": 1 / (50 * HOUR)}
    length_s = 10_000 * HOUR
    found = levels.drawn(rates, length_s, np.random.default_rng(7))
    interval_s, both = levels.best_levels([MEMORY, FILES], list(rates.values()))
    alone_s, files = levels.best_levels([FILES], [sum(rates.values())])
    gain = levels.effective_share(found, length_s, both, interval_s)
    gain -= levels.effective_share(found, length_s, files, alone_s)
    assert 0.05 < gain < 0.2


def test_no_level_is_written_faster_than_it_becomes_durable() -> None:
    slow = Level("files", Costs(training_s=0.1, lag_s=40.0), frozenset({"node"}))
    quick = Level("memory", Costs(training_s=0.05, lag_s=0.0), frozenset({"process"}))
    interval_s, (_, files) = levels.best_levels([quick, slow], [1 / 9000.0, 1 / 9000.0])
    assert interval_s == 30.0
    assert files.every * interval_s >= 40.0


def test_checkpoints_that_cost_nothing_have_no_best_interval() -> None:
    free = Level("memory", Costs(training_s=0.0), frozenset({"process"}))
    with pytest.raises(ValueError, match="the interval of the cheapest level"):
        levels.best_levels([free], [1 / HOUR])
    with pytest.raises(ValueError, match="an interval"):
        levels.effective_share([], 1000.0, [free], 0.0)


def test_a_level_keeps_at_least_every_checkpoint() -> None:
    with pytest.raises(ValueError, match="level files: every is 0; give a whole number from 1"):
        Level("files", FILES.costs, FILES.survives, every=0)


def two_nodes() -> NodeFailures:
    """A process dies on a node at 95 s, and at 600 s that node fails, with a spare beside it."""
    found = nodes_of((95.0, 0, 1e9), (600.0, 0, 1e9), nodes=2, length_s=1000.0)
    return replace(found, of_process=np.array([True, False]))


def test_the_death_of_a_process_leaves_the_job_its_node() -> None:
    found = replay.interruptions(two_nodes(), needed=1)
    assert levels.of_job(found) == [Failure(95.0, "process"), Failure(600.0, "node")]
    assert [change.nodes for change in elastic.changes(two_nodes(), 2)] == [2, 1]


def test_a_node_and_a_process_of_one_instant_are_a_failure_of_the_node() -> None:
    pair = nodes_of((95.0, 0, 50.0), (95.0, 1, 50.0), nodes=2, length_s=1000.0)
    for of_process in ([True, False], [False, True]):
        found = replay.interruptions(replace(pair, of_process=np.array(of_process)), needed=2)
        assert levels.of_job(found) == [Failure(95.0, "node", wait_s=50.0)]


def test_a_job_of_several_levels_begins_when_it_has_its_nodes() -> None:
    assert levels.effective_share([], 200.0, [FILES], 10.0, begin_s=100.0) == pytest.approx(
        levels.effective_share([], 100.0, [FILES], 10.0) / 2
    )


@pytest.mark.parametrize(("name", "rows"), [("gpu-400", 24), ("lanl-18", 687), ("lanl-20", 646)])
def test_a_trace_knows_its_failures_of_software(name: str, rows: int) -> None:
    assert not failures.trace(name).kills_process.any()
    trace = failures.trace(name, software_kills_process=True)
    assert trace.kills_process.sum() == rows
    first, second = failures.halves(trace)
    assert first.kills_process.sum() + second.kills_process.sum() == rows
    every = failures.chosen(trace, 2 * trace.nodes, np.random.default_rng(1))
    assert every.kills_process.sum() == 2 * rows


def gain_of_memory(name: str, draws: int = 30) -> float:
    """Return the points that memory is worth beside files, where it outlives all software."""
    trace = failures.trace(name, software_kills_process=True)
    part = trace.kills_process.sum() / trace.interrupts.sum()
    rate = 64 * trace.rate_per_node_s
    interval_s, both = levels.best_levels([MEMORY, FILES], [rate * part, rate * (1 - part)])
    alone_s, files = levels.best_levels([FILES], [rate])
    gains = []
    rng = np.random.default_rng(8)
    for _ in range(draws):
        job = replay.interruptions(failures.chosen(trace, 68, rng), needed=64)
        found = levels.of_job(job)
        shares = [
            levels.effective_share(found, job.length_s, kept, each_s, job.begin_s)
            for kept, each_s in ((both, interval_s), (files, alone_s))
        ]
        gains.append(100 * (shares[0] - shares[1]))
    return float(np.mean(gains))


@pytest.mark.parametrize("name", failures.TRACES)
def test_memory_is_worth_nothing_where_most_failures_are_of_nodes(name: str) -> None:
    assert abs(gain_of_memory(name)) < 0.1


# Shrinking

COSTS = Costs(training_s=10, restart_s=40, detect_s=10)


def shrunk(found: NodeFailures, needed: int) -> float:
    return float(elastic.effective_shares(found, needed, [COSTS], np.array([[90.0]]))[0, 0])


def test_a_job_that_shrinks_trains_with_the_nodes_that_are_left() -> None:
    """One of two nodes fails at 250 s and is never repaired."""
    found = nodes_of((250.0, 1, 1e9), nodes=2, length_s=1000.0)
    assert shrunk(found, needed=2) == pytest.approx((2 * 90 + 7 * 90 / 2) / 1000)


def test_a_repaired_node_comes_back_by_a_planned_start() -> None:
    """It is back at 500 s. Saving and starting take 10 + 40 s, and nothing is lost."""
    found = nodes_of((250.0, 1, 250.0), nodes=2, length_s=1000.0)
    with_one_s = 2 * 90
    with_both_s = 4 * 90 + 50
    assert shrunk(found, 2) == pytest.approx((2 * 90 + with_one_s / 2 + with_both_s) / 1000)


@pytest.mark.parametrize(("again_s", "kept_s"), [(565.0, 180), (575.0, 240)])
def test_the_save_of_a_planned_start_counts_once_it_is_durable(
    again_s: float, kept_s: float
) -> None:
    """The node is back at 560 s, and the save takes until 570 s. The other one fails meanwhile."""
    found = nodes_of((250.0, 1, 310.0), (again_s, 0, 1e9), nodes=2, length_s=1000.0)
    alive_s = 1000 - again_s - 50
    later_s = alive_s // 100 * 90 + min(alive_s % 100, 90)
    assert shrunk(found, 2) == pytest.approx((2 * 90 + kept_s / 2 + later_s / 2) / 1000)


def test_a_job_begins_with_fewer_nodes_where_one_is_broken_at_the_start() -> None:
    """It is back at 500 s, as in the test above."""
    none = nodes_of((0.0, 0, 0.0), nodes=2, length_s=1000.0)
    none.interrupts[:] = False
    found = replace(none, under_repair={1: 500.0})
    # Saving and starting take 10 + 40 s, and then four segments fit, and a half.
    assert shrunk(found, 2) == pytest.approx((5 * 90 / 2 + 4 * 90 + 50) / 1000)


def test_a_spare_keeps_the_job_from_shrinking() -> None:
    found = nodes_of((250.0, 1, 1e9), nodes=3, length_s=1000.0)
    assert [change.nodes for change in elastic.changes(found, 2)] == [2]


def test_a_job_without_any_node_trains_nothing() -> None:
    found = nodes_of((0.0, 0, 1e9), nodes=1, length_s=1000.0)
    assert shrunk(found, 1) == 0.0


def test_shrinking_is_better_than_waiting_where_repairs_take_long() -> None:
    found = nodes_of((250.0, 1, 500.0), nodes=4, length_s=1000.0)
    waiting = replay.interruptions(found, 4)
    waited = float(replay.effective_shares(waiting, [COSTS], np.array([[90.0]]))[0, 0])
    assert shrunk(found, 4) > waited + 0.2
