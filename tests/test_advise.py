"""The command `advise` on stored runs: its numbers, its words, and wrong input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import records
from references import reference, references
from reported import item, store_run
from reported import measured as costs_of
from stubs import Ended, command

from harness.analysis import advice_figure, judging
from harness.analysis.advice import (
    Assumed,
    LargerState,
    Measured,
    advise,
    at_interval,
    measured,
    scaled,
)
from harness.analysis.statistics import Estimate
from harness.cli import amounts
from harness.experiments.cost.rows import CostRow
from harness.experiments.train.rows import TrainRow
from harness.intervals import failures
from harness.intervals.costs import Costs
from harness.wire.records import LoadRecord

TRAINED = reference("train-ranks-pytorch")
RUN = TRAINED.stored.folder
ASSUMED = Assumed(mtbf_s=36_000, restart_s=60, detect_s=10)
FAULTS = references("-faults-")[0].stored.folder


def advised(*options: str) -> Ended:
    return command("advise", str(RUN), *options)


def test_every_method_gets_an_interval_and_the_split_of_its_loss() -> None:
    lines = json.loads(advised("--format", "json").output)
    assert len(lines) == 6
    for line in lines:
        lost = sum(value for name, value in line.items() if name.startswith("lost_"))
        assert line["effective"] + lost == pytest.approx(1.0)
        assert line["effective_low"] <= line["effective"] <= line["effective_high"]
        assert line["flat_from_s"] <= line["interval_s"] <= line["flat_to_s"]
        assert line["interval_steps"] >= 1
        assert line["notes"][-1] == "measured on 2 ranks, the largest world of the run"
    shares = [line["effective"] for line in lines]
    assert shares == sorted(shares, reverse=True)


def test_a_run_without_training_says_that_the_slowdown_is_missing() -> None:
    bench = reference("-bench-jax")
    for one in measured(bench.rows, ASSUMED):
        assert any("slowdown of training was not measured" in note for note in one.notes)
        assert advise(one, ASSUMED).steps is None


def test_numbers_in_doubt_are_noted(tmp_path: Path) -> None:
    doubted, clean = item("direct"), item("buffered")
    found = [
        *costs_of(doubted.case.id, 0.01),
        *costs_of(clean.case.id, 0.02),
        records.finding(doubted.case.id, weight="mark", sentence="it changed os.fsync"),
    ]
    folder = store_run(tmp_path, [doubted, clean], found)
    doubt = "what 'cost' measured is in doubt, because it changed os.fsync"
    lines = json.loads(command("advise", str(folder), "--format", "json").output)
    notes_of = {line["method"]: line["notes"] for line in lines}
    assert (doubt in notes_of["direct"], doubt in notes_of["buffered"]) == (True, False)
    output = command("advise", str(folder)).output
    assert f"direct: {doubt}." in " ".join(output.split())


def test_a_method_that_the_largest_world_lacks_keeps_the_other_worlds() -> None:
    rows = [row for row in TRAINED.rows if (row.method, row.world) != ("torch-save", 2)]
    names = [one.name for one in measured(rows, ASSUMED)]
    assert len(names) == 11
    assert "torch-save, resnet50 full float32, 1 rank" in names
    assert "dcp, resnet50 full float32, 2 ranks with ddp" in names


def test_the_table_names_every_method_and_its_largest_loss() -> None:
    output = advised("--restart", "1h", "--job-mtbf", "1d").output
    assert "largest" in output
    lines = re.findall(r"^ ([a-z-]+) .*%.* restart ", output, flags=re.MULTILINE)
    assert lines == list(by_method())


def test_no_word_of_the_table_is_cut_off() -> None:
    output = advised("--trace", "gpu-400").output
    assert "…" not in output
    assert all(f" {method} " in output for method in by_method())


def test_the_output_says_what_was_asked_and_where_its_figures_are_from() -> None:
    options = ("--trace", "gpu-400", "--ranks", "8000", "--budget", "5%", "--policy", "young")
    (line, *_) = by_method(*options).values()
    asked = {name: line[name] for name in ("trace", "ranks", "nodes", "policy", "budget")}
    assert asked == {
        "trace": "gpu-400",
        "ranks": 8000,
        "nodes": 1000,
        "policy": "young",
        "budget": 0.05,
    }
    assert line["extrapolated"] is True
    assert (line["source_training_s"], line["source_restart_s"]) == ("measured", "assumed")
    assert line["measured_ranks"] == 2
    (line, *_) = by_method("--state-bytes", "1TB").values()
    assert (line["trace"], line["extrapolated"]) == (None, False)
    assert (line["source_lag_s"], line["source_detect_s"]) == ("extrapolated", "assumed")
    output = " ".join(advised("--state-bytes", "1TB").output.split())
    assert "costs extrapolated to a larger state" in output
    assert "Extrapolated from what was measured: what a checkpoint costs" in output


class Rows(NamedTuple):
    """The rows of one method: what it costs, and by how much it slows down training."""

    cost: CostRow
    train: TrainRow

    def advised(self, **changes: object) -> Measured:
        """Return the costs with other values of the rows, by the names of their columns."""
        of_rows = []
        for row in self:
            known = {name: value for name, value in changes.items() if hasattr(row, name)}
            of_rows.append(replace(row, **known))
        (one,) = measured(of_rows, ASSUMED)
        return one


@pytest.fixture
def rows_of_dcp() -> Rows:
    """Return rows whose state is complete, with costs that are easy to add up."""
    of_method = [row for row in TRAINED.rows if (row.method, row.world) == ("dcp", 1)]
    cost = next(row for row in of_method if isinstance(row, CostRow))
    train = next(row for row in of_method if isinstance(row, TrainRow))
    cost = replace(cost, stall_s=seconds(1), durable_s=seconds(5), load_s=seconds(2), marks=[])
    train = replace(train, stall_s=seconds(1), overhead_s=seconds(3), marks=[])
    return Rows(cost, replace(train, back_pressure_s=seconds(0)))


def seconds(value: float, low: float | None = None, single: bool = False) -> Estimate:
    return Estimate(value, value if low is None else low, value, single=single)


def test_the_lag_begins_when_training_has_paid_for_the_checkpoint(rows_of_dcp: Rows) -> None:
    """It is durable after 5 s, and 3 s of these are in what it adds to training already."""
    costs = rows_of_dcp.advised().costs
    assert (costs.training_s, costs.lag_s, costs.restore_s) == (3, 2, 2)


@pytest.mark.parametrize("overhead_s", [-0.5, 0.0, 0.4])
def test_a_checkpoint_costs_its_stall_at_least(rows_of_dcp: Rows, overhead_s: float) -> None:
    one = rows_of_dcp.advised(overhead_s=seconds(overhead_s, low=-1.0))
    assert one.costs.training_s == 1
    assert one.notes == ("what a checkpoint adds to training was within the noise of the steps",)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (
            {"back_pressure_s": seconds(2)},
            "of the 3 s that a checkpoint cost every 4 steps, 2 s were a wait for the one before; "
            "at a longer interval it costs less",
        ),
        ({"covers": "weights"}, "its checkpoints hold weights alone, so training cannot go on"),
        ({"load_cache": "warm"}, "its restore was measured with files in the page cache"),
        ({"load_cache": "memory"}, "its restore was measured from the node's memory, which dies"),
        ({"durable_s": None}, "the lag until durable was not measured, and counts as 0"),
        ({"load_s": seconds(2, single=True)}, "some of its costs are of a single sample"),
    ],
)
def test_what_limits_an_advice_is_noted(
    rows_of_dcp: Rows, changes: dict[str, object], note: str
) -> None:
    assert not any(said.startswith(note) for said in rows_of_dcp.advised().notes)
    assert any(said.startswith(note) for said in rows_of_dcp.advised(**changes).notes)


def test_a_single_sample_has_no_brackets(rows_of_dcp: Rows) -> None:
    one = advise(rows_of_dcp.advised(load_s=seconds(2, single=True)), ASSUMED)
    assert (one.to_json()["effective_low"], one.to_json()["effective_high"]) == (None, None)
    several = advise(rows_of_dcp.advised(), ASSUMED)
    assert several.to_json()["effective_low"] == several.low


def test_both_sides_of_a_comparison_are_advised(rows_of_dcp: Rows) -> None:
    both = [replace(row, arm=arm) for arm in "ab" for row in rows_of_dcp]
    assert [one.name for one in measured(both, ASSUMED)] == ["dcp, side a", "dcp, side b"]


def test_the_row_with_the_fewest_checkpoints_counts(rows_of_dcp: Rows) -> None:
    often = replace(rows_of_dcp.train, every=1, overhead_s=seconds(9))
    (one,) = measured([often, *rows_of_dcp], ASSUMED)
    assert one.costs.training_s == 3


def test_whole_steps_keep_to_the_budget(rows_of_dcp: Rows) -> None:
    costs = Costs(training_s=0.7)
    one = Measured("any", costs, costs, costs, 8.0, None, ())
    kept = advise(one, replace(ASSUMED, budget=0.035, policy="checkfreq"))
    # 20 s are 2.5 steps, and two of them would cost 4.4 %.
    assert (kept.interval_s, kept.steps) == (pytest.approx(20.0), 3)


def test_a_small_part_of_a_larger_state_is_noted() -> None:
    one = Measured("any", *[Costs(training_s=1.0)] * 3, 0.5, 1000, ())
    assert scaled(one, LargerState(8000.0, 4, 1)).step_s is None
    notes = [*scaled(one, LargerState(8000.0, 4, 1)).notes]
    assert not any("counts for too little" in note for note in notes)
    notes = [*scaled(one, LargerState(8000.0, 16, 2)).notes]
    assert any("a rank's part of 500 B is smaller than the 1" in note for note in notes)


@pytest.mark.parametrize(("bandwidth", "is_noted"), [(4e9, True), (1e9, False), (0.0, False)])
def test_a_bandwidth_far_above_the_measured_speed_is_noted(
    bandwidth: float, is_noted: bool
) -> None:
    # A rank's 8 GB took 8 s, and 64 GB are written by the 8 ranks of a node.
    costs = Costs(training_s=0.5, lag_s=7.5)
    one = Measured("any", costs, costs, costs, None, 8 * 10**9, (), asynchronous=True)
    larger = LargerState(64e10, 80, 10, node_bytes_per_s=8 * bandwidth)
    said = [note for note in scaled(one, larger).notes if "the bandwidth helps only" in note]
    assert bool(said) == is_noted
    if is_noted:
        assert "is written in 2 s, and at the measured speed in 8 s" in said[0]


def test_no_speed_is_told_that_nobody_measured(rows_of_dcp: Rows) -> None:
    one = replace(rows_of_dcp.advised(durable_s=None), asynchronous=True)
    fast = LargerState(1e15, 1024, 128, node_bytes_per_s=1e15)
    assert not any("at the measured speed" in note for note in scaled(one, fast).notes)


def test_a_given_bandwidth_replaces_what_was_not_measured(rows_of_dcp: Rows) -> None:
    one = rows_of_dcp.advised(durable_s=None, load_s=None)
    assert (one.sources["lag_s"], one.sources["restore_s"]) == ("unknown", "unknown")
    larger = LargerState(1e12, 1024, 128, node_bytes_per_s=2e9)
    known = scaled(one, larger)
    assert (known.sources["lag_s"], known.sources["restore_s"]) == ("extrapolated",) * 2
    assert not any("counts as 0" in note for note in known.notes)


def test_spares_count_for_what_a_trace_has() -> None:
    options = ("--trace", "gpu-400", "--ranks", "3200")
    (line, *_) = by_method(*options).values()
    assert (line["nodes"], line["extrapolated"]) == (400, False)
    output = " ".join(advised(*options, "--spares", "1").output.split())
    assert "Extrapolated with spares: gpu-400 has 400 nodes, and the job 401." in output
    assert "Extrapolated" not in advised(*options).output


def test_a_curve_begins_where_saves_do_not_overlap() -> None:
    costs = Costs(training_s=0.1, lag_s=20.0)
    one = advise(Measured("any", costs, costs, costs, None, None, ()), ASSUMED)
    (axes,) = advice_figure.draw([one], ASSUMED, "some-run").figure.subfigs[0].axes
    assert axes.lines[0].get_xdata()[0] == pytest.approx(20.0)


def test_a_curve_of_a_trace_is_that_of_the_table() -> None:
    """The mark is at the share that the replay gives the advised interval."""
    _, unseen = failures.halves(failures.trace("lanl-20"))
    costs = Costs(training_s=20.0, restore_s=30.0, restart_s=600.0)
    one = advise(Measured("any", costs, costs, costs, None, None, ()), ASSUMED)
    job = judging.JobInTrace("lanl-20", unseen, 256)
    (judged,) = judging.judged([one], job)
    drawn = advice_figure.draw([one], ASSUMED, "some-run", job)
    curve, mark = drawn.figure.subfigs[0].axes[0].lines
    assert mark.get_ydata() == pytest.approx([judged.shares.effective])
    assert max(curve.get_ydata()) > 1.1 * min(curve.get_ydata())
    low, high = drawn.figure.subfigs[0].axes[0].get_ylim()
    assert high - low < 1.2 * (max(curve.get_ydata()) - min(curve.get_ydata()))
    assert "100 jobs of 256 nodes, drawn from the second half of lanl-20" in drawn.caption


def test_all_numbers_of_spares_meet_the_same_failures_beyond_the_nodes_of_a_trace() -> None:
    """A spare more may need another copy of the trace, and changes no later draw."""
    trace = failures.trace("gpu-400")
    firsts = []
    for nodes in (400, 401, 801):
        rng = np.random.default_rng(1)
        draws = [failures.chosen(trace, nodes, rng) for _ in range(3)]
        # The first failure of the first copy, which all of them have.
        firsts.append([each.at_s[each.node < 400][0] for each in draws])
    assert firsts[0] == firsts[1] == firsts[2]


def test_more_ranks_fail_more_often() -> None:
    few, many = (
        json.loads(advised("--format", "json", "--ranks", ranks).output)[0]["job_mtbf_s"]
        for ranks in ("8", "80")
    )
    assert few == pytest.approx(10 * many)


def test_the_rates_of_job_and_nodes_add_up() -> None:
    job, nodes, both = (
        json.loads(advised("--format", "json", *options).output)[0]["job_mtbf_s"]
        for options in (
            ("--job-mtbf", "8h"),
            ("--node-mtbf", "100d"),
            ("--job-mtbf", "8h", "--node-mtbf", "100d"),
        )
    )
    assert (job, nodes) == (pytest.approx(8 * 3600), pytest.approx(100 * 86_400 / 128))
    assert both == pytest.approx(1 / (1 / job + 1 / nodes))


def by_method(*options: str) -> dict[str, dict[str, Any]]:
    lines = json.loads(advised("--format", "json", *options).output)
    return {line["method"]: line for line in lines}


def of_larger(costs: Costs, larger: LargerState, asynchronous: bool = True) -> Costs:
    """Return the costs that were measured on 1 GB of one rank, for a larger state."""
    one = Measured("any", costs, costs, costs, None, 10**9, (), asynchronous=asynchronous)
    return scaled(one, larger).costs


def test_a_larger_state_is_extrapolated() -> None:
    small, large = (
        json.loads(advised("--format", "json", *options).output)[0]
        for options in ((), ("--state-bytes", "1e12", "--node-bandwidth", "2"))
    )
    assert large["cost_training_s"] > small["cost_training_s"]
    assert any("extrapolated" in note for note in large["notes"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "Measured on 2 ranks, and supposed to be the same on 1,024: what a checkpoint costs"),
        (("--ranks", "2"), "Measured: what a checkpoint costs"),
        (("--state-bytes", "1TB"), "Extrapolated from what was measured: what a checkpoint costs"),
    ],
)
def test_the_output_says_on_how_many_ranks_the_costs_were_measured(
    options: tuple[str, ...], words: str
) -> None:
    assert words in " ".join(advised(*options).output.split())


def test_costs_grow_with_the_bytes_of_a_rank() -> None:
    costs = Costs(training_s=0.1, lag_s=1.0, restore_s=2.0)
    few = of_larger(costs, LargerState(800e9, ranks=8, nodes=1))
    assert few == Costs(training_s=10.0, lag_s=100.0, restore_s=200.0)
    many = of_larger(costs, LargerState(800e9, ranks=800, nodes=100))
    assert many == Costs(training_s=0.1, lag_s=1.0, restore_s=2.0)


def test_a_rank_that_wrote_half_of_the_state_is_extrapolated_from_that_half() -> None:
    costs = Costs(training_s=0.1)
    half = Measured("any", costs, costs, costs, None, 10**9, (), 2, sharded=True, asynchronous=True)
    whole = replace(half, sharded=False)
    larger = LargerState(8e9, ranks=8, nodes=1)
    assert scaled(half, larger).costs.training_s == pytest.approx(0.2)
    assert scaled(whole, larger).costs.training_s == pytest.approx(0.1)


def test_the_slower_of_node_and_storage_sets_the_lag() -> None:
    costs = Costs(training_s=0.1, lag_s=1.0, restore_s=2.0)
    by_node = of_larger(costs, LargerState(800e9, 800, 100, 2e9, 400e9))
    # A tenth of a second of the write has passed when the lag begins.
    assert (by_node.lag_s, by_node.restore_s) == (pytest.approx(3.9), 4.0)
    by_storage = of_larger(costs, LargerState(800e9, 800, 100, 2e9, 100e9))
    assert (by_storage.lag_s, by_storage.restore_s) == (pytest.approx(7.9), 8.0)


def test_a_slowdown_during_the_write_is_no_lag_too() -> None:
    """A stall of 0.1 s and a slowdown of 0.9 s are over when the checkpoint is durable."""
    costs = Costs(training_s=1.0, lag_s=0.0)
    one = Measured("any", costs, costs, costs, None, 10**9, (), asynchronous=True, stall_s=0.1)
    larger = LargerState(100e9, ranks=1, nodes=1, node_bytes_per_s=1e9)
    made = scaled(one, larger).costs
    assert made.training_s == pytest.approx(100.0)
    assert made.lag_s == pytest.approx(10.0), "the stall is 10 s, and the write 100 s"


def test_a_synchronous_write_counts_once() -> None:
    costs = Costs(training_s=0.1, lag_s=0.01)
    slow = of_larger(costs, LargerState(800e9, 800, 100, 2e9), asynchronous=False)
    assert (slow.training_s, slow.lag_s) == (4.0, 0.0)
    fast = of_larger(costs, LargerState(800e9, 800, 100, 1e12), asynchronous=False)
    assert fast.training_s == pytest.approx(0.1)
    unknown = of_larger(costs, LargerState(8000e9, 800, 100), asynchronous=False)
    assert (unknown.training_s, unknown.lag_s) == (pytest.approx(1.0), pytest.approx(0.1))


def test_a_budget_lengthens_the_interval() -> None:
    free, bound = (
        json.loads(advised("--format", "json", *options).output)[0]
        for options in ((), ("--budget", "0.001%"))
    )
    assert bound["interval_s"] > free["interval_s"]
    assert bound["cost_training_s"] / bound["interval_s"] <= 1e-5


@pytest.mark.parametrize("policy", ["oracle", "checkfreq", "replayed"])
def test_every_interval_that_is_called_as_good_keeps_to_the_budget(policy: str) -> None:
    trace = ("--trace", "lanl-20", "--ranks", "512")
    for line in by_method("--budget", "0.01%", "--policy", policy, *trace).values():
        assert line["interval_s"] >= line["flat_from_s"] * 0.999999
        assert line["cost_training_s"] / line["flat_from_s"] <= 1e-4 * 1.000001


def test_the_words_name_the_largest_loss_and_what_was_assumed() -> None:
    output = advised("--restart", "1h", "--job-mtbf", "1d").output
    assert "the largest part of the lost time is restart" in output
    assert "A better checkpoint cannot help with that." in output
    assert "Assumed: a failure every 1 d" in output


def test_a_trace_judges_by_its_second_half() -> None:
    lines = json.loads(advised("--format", "json", "--trace", "lanl-20", "--ranks", "512").output)
    for line in lines:
        assert 0 < line["in_trace_p5"] <= line["in_trace"] <= line["in_trace_p95"] <= 1
    # A job without spares waits for repairs, which the formula leaves out.
    assert lines[0]["in_trace"] < lines[0]["effective"]


def test_the_wait_for_a_node_is_a_part_of_the_loss_in_a_trace() -> None:
    options = ("--trace", "gpu-400", "--ranks", "1024")
    for line in json.loads(advised("--format", "json", *options).output):
        lost = sum(value for name, value in line.items() if name.startswith("in_trace_lost_"))
        assert line["in_trace"] + lost == pytest.approx(1.0)
        assert line["in_trace_lost_wait"] > 0.5
        assert line["in_trace_largest_loss"] == "wait"
        assert line["lost_wait"] == 0.0
    output = advised(*options).output
    assert "in gpu-400, the largest part of the lost time is waiting for a node" in output


def test_spares_are_tried_and_the_best_count_is_named() -> None:
    output = advised("--trace", "lanl-20", "--ranks", "512", "--spares", "2").output
    assert "spare nodes are best with deepfreeze" in output


def test_spares_are_compared_with_waiting_and_with_shrinking() -> None:
    options = ("--trace", "gpu-400", "--ranks", "512", "--spares", "1", "--format", "json")
    best, *others = json.loads(advised(*options).output)
    none, one = best["spares"]
    # Repairs take days in this trace, so a job that waits for them loses most of its time.
    assert none["shrinking"] > one["waiting"] > none["waiting"]
    # So one spare is better, and the draws leave no doubt.
    assert none["waiting_behind"] == pytest.approx(none["waiting"] - one["waiting"])
    assert none["waiting_behind_high"] < one["waiting_behind"] == 0
    # Of 64 nodes, few are under repair at a time, and nobody pays for them.
    assert best["in_trace"] < none["waiting"] < 1.1 * best["in_trace"]
    assert all("spares" not in line for line in others)


def test_spares_are_tried_under_failures_at_random_instants() -> None:
    options = ("--ranks", "512", "--spares", "2")
    output = " ".join(advised(*options).output.split())
    assert "spare nodes are best with deepfreeze" in output
    assert "100 draws of half a year with failures at random instants" in output
    assert "A repair takes 5 d on average" in output
    best, *others = json.loads(advised(*options, "--format", "json").output)
    none, one, two = (each["waiting"] for each in best["spares"])
    # Of 64 nodes, one or two are under repair at a time.
    assert none < one < two
    assert best["spares_repair_s"] == 5 * 86_400.0
    assert "More than 2 were not tried" in output
    assert all("spares" not in line for line in others)


def test_spares_are_worth_nothing_where_repairs_take_no_time() -> None:
    options = ("--ranks", "512", "--spares", "1", "--repair", "1s", "--format", "json")
    best, *_ = json.loads(advised(*options).output)
    none, one = best["spares"]
    assert none["waiting"] == pytest.approx(best["effective"], abs=0.005)
    assert one["waiting"] == pytest.approx(none["waiting"] * 64 / 65, abs=0.005)


def test_failures_of_the_job_itself_take_no_node() -> None:
    costs = Costs(training_s=0.0, restart_s=600.0)
    one = at_interval(Measured("any", costs, costs, costs, None, None, ()), ASSUMED, 60.0)
    rates = failures.RandomFailures(0.0, job_rate_s=1 / 36_000.0, repair_s=86_400.0)
    alone, beside = judging.with_spares(one, rates, needed=1, most=1)
    # Each failure costs a restart of 10 minutes and half an interval, every 10 hours.
    assert alone.waiting == pytest.approx(1 - 630 / 36_000, abs=0.002)
    assert alone.shrinking == pytest.approx(alone.waiting, abs=1e-6)
    assert beside.waiting == pytest.approx(alone.waiting / 2, abs=0.002)


def test_a_job_whose_only_node_is_broken_all_the_time_trains_nothing() -> None:
    one = at_interval(Measured("any", *[Costs(training_s=0.0)] * 3, None, None, ()), ASSUMED, 60.0)
    never_repaired = failures.RandomFailures(1e-4, job_rate_s=0.0, repair_s=1e12)
    (none,) = judging.with_spares(one, never_repaired, needed=1, most=0)
    assert none.waiting < 0.01
    assert none.shrinking < 0.01


def test_a_job_that_shrinks_pays_for_the_nodes_that_it_has() -> None:
    """One of two nodes is broken for half of the time. The other one trains all the time."""
    failed = failures.NodeFailures(
        nodes=2,
        length_s=1e6,
        at_s=np.array([5e5]),
        node=np.array([0]),
        repair_s=np.array([1e9]),
        interrupts=np.array([True]),
    )
    costs = Costs(training_s=0.0)
    one = at_interval(Measured("any", costs, costs, costs, None, None, ()), ASSUMED, 10.0)
    (none,) = judging.with_spares(one, failed, needed=2, most=0)
    assert none.shrinking == pytest.approx(1.0, abs=1e-4)
    # The job that waits pays for its other node until it can go on.
    assert none.waiting < 0.8


def test_a_policy_chooses_the_interval() -> None:
    by_policy = {}
    for policy in ("oracle", "young", "daly", "checkfreq"):
        lines = json.loads(advised("--policy", policy, "--format", "json").output)
        by_policy[policy] = {line["method"]: line for line in lines}
    name = next(iter(by_policy["oracle"]))
    young = by_policy["young"][name]
    assert young["interval_s"] > by_policy["daly"][name]["interval_s"]
    for policy in ("young", "daly", "checkfreq"):
        assert by_policy[policy][name]["effective"] <= by_policy["oracle"][name]["effective"]
    line = by_policy["checkfreq"][name]
    assert line["cost_training_s"] / line["interval_s"] <= 0.035 * 1.001
    assert (line["budget"], young["budget"]) == (0.035, None)


def test_the_policy_and_its_budget_are_said() -> None:
    assert "The interval is that of the policy young.\n" in advised("--policy", "young").output
    bounded = "The interval is that of the policy checkfreq, within a budget of 3.5%."
    assert bounded in advised("--policy", "checkfreq").output


def test_spares_are_proposed_where_none_were_tried() -> None:
    job = ("--trace", "gpu-400", "--ranks", "1024")
    without, tried = advised(*job).output, advised(*job, "--spares", "1").output
    assert "try --spares" in without
    assert "try --spares" not in tried
    assert "The table of methods is without spares." in tried


def test_an_interval_that_the_first_half_chose_is_judged_by_the_second() -> None:
    options = ("--trace", "lanl-20", "--ranks", "512", "--format", "json")
    by_formula = {line["method"]: line for line in json.loads(advised(*options).output)}
    chosen = json.loads(advised(*options, "--policy", "replayed").output)
    assert len(chosen) == len(by_formula)
    for line in chosen:
        formula = by_formula[line["method"]]
        tried = formula["interval_s"] * np.geomspace(1 / 8, 8.0, 21)
        assert np.isclose(line["interval_s"], tried).any()
        # The optimum is flat, so two good choices differ little.
        assert line["in_trace"] == pytest.approx(formula["in_trace"], abs=0.005)


def test_more_nodes_than_the_trace_has_are_called_extrapolated() -> None:
    assert (
        "Extrapolated: gpu-400 has 400 nodes"
        in advised("--trace", "gpu-400", "--ranks", "16384").output
    )


def test_a_figure_is_written(tmp_path: Path) -> None:
    advised("--out", str(tmp_path))
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".png", ".svg"]


def test_a_figure_beside_json_leaves_the_json_alone(tmp_path: Path) -> None:
    ended = advised("--out", str(tmp_path), "--format", "json")
    assert len(json.loads(ended.output)) == 6
    assert ".svg" in ended.errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--job-mtbf", "8"), "--job-mtbf is '8', and must be a time above 0 with its unit"),
        (("--job-mtbf", "-8h"), "must be a time above 0 with its unit"),
        (("--job-mtbf", "0s"), "must be a time above 0 with its unit"),
        (("--job-mtbf", f"{'9' * 39}h"), "--job-mtbf is longer than 100000 days; give a shorter"),
        (("--restart", "-1s"), "--restart is '-1s', and must be a time with its unit"),
        (("--budget", "3.5"), "--budget is '3.5', and must be a percentage above 0% and below"),
        (("--budget", "1e-9%"), "--budget is '1e-9%', which is too small; give at least 0.000001%"),
        (("--job-mtbf", "0.0005s"), "--job-mtbf is '0.0005s', which is too short; give at least"),
        (("--detect", "0.0005s"), "which is too short; give at least 0.001s"),
        (("--budget", "100%"), "must be a percentage above 0% and below 100%, such as 3.5%"),
        (("--trace", "gpu-40"), "gpu-400"),
        (("--spares", "2", "--job-mtbf", "8h"), "--spares needs nodes that fail"),
        (("--repair", "1h"), "--repair needs --spares"),
        (("--repair", "1h", "--trace", "gpu-400"), "--repair and --trace exclude each other"),
        (("--spares", "2", "--repair", "soon"), "--repair is 'soon', and must be a time"),
        (("--policy", "yung"), "young"),
        (("--policy", "replayed"), "--policy replayed needs --trace"),
        (("--policy", "coci"), "--policy coci needs the curve of a training's loss"),
        (("--state-bytes", "-1"), "must be a size such as 1e12, 1TB or 105GiB"),
        (("--state-bytes", "inf"), "must be a size such as 1e12, 1TB or 105GiB"),
        (("--state-bytes", "1MB"), "--state-bytes is 1 MB, and torch-save"),
        (("--state-bytes", "1e300"), "--state-bytes is more than 1000 PB; give fewer bytes"),
        (("--state-bytes", "900PB"), "a smaller --state-bytes or faster storage"),
        (("--state-bytes", "1TB", "--node-bandwidth", "1e-9"), "must be numbers from 0.001"),
        (("--state-bytes", "1TB", "--node-bandwidth", "0"), "must be numbers from 0.001"),
        (("--state-bytes", "1TB", "--storage-bandwidth", "-1"), "must be numbers from 0.001"),
        (("--trace", "gpu-400", "--job-mtbf", "8h"), "--job-mtbf and --trace exclude each other"),
        (("--trace", "gpu-400", "--node-mtbf", "9d"), "--node-mtbf and --trace exclude each other"),
        (("--out", "/dev/null/figures"), "--out /dev/null/figures: Not a directory"),
        (("--node-bandwidth", "2"), "--node-bandwidth and --storage-bandwidth need --state-bytes"),
        (("--trace", "gpu-400", "--spares", "100"), "should be less than or equal to 64"),
        (("--detect", "1e9"), "must be a time with its unit"),
        (("--job-mtbf", "1m"), "the job fails every 1 min, and takes at least 2.17 min to come"),
        (("--job-mtbf", "1m"), "back (detection 10 s, restart 2 min, restore"),
        (("--ranks", "0"), "should be greater than or equal to 1"),
    ],
)
def test_wrong_input_gets_one_sentence(options: tuple[str, ...], message: str) -> None:
    ended = advised(*options)
    assert (ended.status, ended.escaped) == (2, "")
    assert message in " ".join((ended.errors + ended.output).split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [(".5h", 1800), ("90min", 5400), ("90m", 5400), ("1.5 d", 129_600), ("30s", 30)],
)
def test_a_time_may_be_written_in_several_ways(text: str, expected: float) -> None:
    assert amounts.seconds("--job-mtbf", text) == expected


def test_a_restart_may_take_no_time_at_all() -> None:
    assert amounts.seconds("--restart", "0s", from_zero=True) == 0
    lines = by_method("--restart", "0s", "--detect", "0s")
    assert {line["lost_restart"] + line["lost_detect"] for line in lines.values()} == {0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1TB", 1e12), ("1.5e12", 1.5e12), ("105GiB", 105 * 2**30), (".5 kB", 500), ("7", 7)],
)
def test_a_size_may_have_a_unit(text: str, expected: float) -> None:
    assert amounts.size_bytes("--state-bytes", text) == expected


def test_the_longest_time_between_failures_has_an_interval() -> None:
    rare = by_method("--job-mtbf", "100000d")
    assert all(0.99 < line["effective"] <= 1 for line in rare.values())


def test_a_method_that_comes_back_too_slowly_is_left_out_by_name(tmp_path: Path) -> None:
    slow, quick = item("direct"), item("buffered")
    found = [*costs_of(quick.case.id, 0.01)]
    for record in costs_of(slow.case.id, 0.01):
        is_load = isinstance(record, LoadRecord)
        found.append(replace(record, load_ns=100 * 10**9) if is_load else record)
    folder = store_run(tmp_path, [slow, quick], found)
    options = ("--format", "json", "--job-mtbf", "1m", "--restart", "0s")
    ended = command("advise", str(folder), *options)
    assert [line["method"] for line in json.loads(ended.output)] == ["buffered"]
    words = " ".join(ended.errors.split())
    assert "left out direct: the job fails every 1 min, and takes 1.83 min to come back" in words


def test_a_run_without_costs_is_refused() -> None:
    ended = command("advise", str(FAULTS))
    assert ended.status == 2
    assert "has no costs of checkpoints; take a run of the suite" in " ".join(ended.errors.split())


@pytest.mark.parametrize("half", [0, 1])
def test_the_half_of_a_trace_that_judges_is_the_second(
    half: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All failures are in one half, so the other one shows no loss by them."""
    hour_s, length_s = 3600.0, 200 * 24 * 3600.0
    instants = np.arange(1.0, 2000.0) * hour_s + half * length_s / 2
    count = len(instants)
    struck = failures.NodeFailures(
        nodes=1024,
        length_s=length_s,
        at_s=instants,
        node=np.arange(count) % 1024,
        repair_s=np.zeros(count),
        interrupts=np.ones(count, dtype=bool),
    )
    monkeypatch.setattr(failures, "trace", lambda name: struck)
    learnt, judging = failures.halves(struck)
    assert (len(learnt.at_s) > 0, len(judging.at_s) > 0) == (half == 0, half == 1)
    ended = advised("--format", "json", "--trace", "lanl-20", "--ranks", "512")
    if half == 1:
        assert "the first half of lanl-20 has no failure" in ended.errors
        return
    lines = json.loads(ended.output)
    for line in lines:
        without_failures = line["interval_s"] / (line["interval_s"] + line["cost_training_s"])
        assert line["in_trace"] == pytest.approx(without_failures, abs=1e-3)
        assert line["effective"] < line["in_trace"]
