"""Verdicts: what is called slower, faster, the same or inconclusive, and how certain it must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import records
from compared_runs import (
    NOISE,
    PROCESSES,
    Make,
    arms,
    calibration,
    changed,
    compared,
    cost,
    costs,
    item,
    maker,
    metrics,
    trained,
    without,
)

from harness.analysis import comparison
from harness.analysis.comparison import ARMS
from harness.analysis.statistics import Estimate
from harness.experiments.cost.records import PAIRS, UpdatesRecord
from harness.experiments.cost.rows import CostRow
from harness.wire.records import Record


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path / "results")


# --- verdicts


@pytest.mark.parametrize(
    ("slower", "noise", "expected"),
    [
        (1.15, NOISE, "slower"),
        (0.8, NOISE, "faster"),
        (1.0, NOISE, "same"),
        (1.045, NOISE, "inconclusive"),  # slower for certain, and not by more than 5 % for certain
        (1.15, (1.0, 1.5, 0.6, 1.2, 0.8, 1.1), "inconclusive"),
    ],
)
def test_verdicts(make: Make, slower: float, noise: Sequence[float], expected: str) -> None:
    plan = [item()]
    base = cost(plan[0], noise=noise)
    head = cost(plan[0], slower, noise=tuple(reversed(noise)))
    found = compared(make, base, head, plan)
    assert metrics(found)["durable"].verdict == expected
    assert found.regressed == (expected == "slower")


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (Estimate(1.049, 1.01, 1.09), "inconclusive"),
        (Estimate(1.051, 1.001, 1.2), "slower"),
        (Estimate(1.2, 0.999, 1.5), "inconclusive"),
        (Estimate(1.0, 0.96, 1.04), "same"),
        (Estimate(0.9, 0.8, 0.99), "faster"),
    ],
)
def test_the_borders_between_verdicts(ratio: Estimate, expected: str) -> None:
    assert comparison.verdict(ratio) == expected


def test_a_ratio_is_a_cost_head_over_base(make: Make) -> None:
    plan = [item()]
    durable = metrics(compared(make, cost(plan[0]), cost(plan[0], 1.2), plan))["durable"]
    assert durable.ratio.value == pytest.approx(1.2, rel=1e-6)
    assert durable.ratio.low < 1.2 < durable.ratio.high
    assert durable.base == pytest.approx(4.0, rel=0.01)
    assert durable.head == pytest.approx(4.8, rel=0.01)


def test_metrics_are_in_the_order_of_the_columns(make: Make) -> None:
    plan = [item()]
    found = compared(make, cost(plan[0]), cost(plan[0]), plan)
    assert list(metrics(found)) == ["stall", "durable", "load"]


def test_many_rows_make_every_interval_wider(make: Make) -> None:
    widths = []
    for plan in ([item()], [item(dropout=0.1 + 0.01 * number) for number in range(20)]):
        found = compared(make, costs(plan), costs(plan), plan)
        assert found.tests == 3 * len(plan)
        widths.append(metrics(found)["durable"].ratio.half_width)
    assert widths[1] > 1.5 * widths[0]


def test_stalls_below_a_millisecond_are_alike(make: Make) -> None:
    plan = [item()]
    short = cost(plan[0], save_ns=1_000, staged_ns=1_000)
    longer = cost(plan[0], save_ns=100_000, staged_ns=1_000)
    assert metrics(compared(make, short, longer, plan))["stall"].verdict == "same"


def test_a_wait_in_the_step_is_part_of_the_stall_that_is_tested(make: Make) -> None:
    plan = [item()]
    waits = [
        UpdatesRecord(
            kind="updates",
            case=plan[0].case.id,
            process=process,
            rank=0,
            beside_raw_ns=(1_000_000,) * PAIRS,
            after_staged_ns=(101_000_000 + process,) * PAIRS,
        )
        for process in range(PROCESSES)
    ]
    base = cost(plan[0], noise=NOISE)
    head = [*cost(plan[0], noise=tuple(reversed(NOISE))), *waits]
    stall = metrics(compared(make, base, head, plan))["stall"]
    assert (stall.base, stall.verdict) == (pytest.approx(0.2, rel=0.01), "slower")
    assert stall.head == pytest.approx(0.3, rel=0.01)


def test_a_few_long_updates_are_no_wait(make: Make) -> None:
    plan = [item()]
    chance = UpdatesRecord(
        kind="updates",
        case=plan[0].case.id,
        process=0,
        rank=0,
        beside_raw_ns=(1_000_000, 1_000_000),
        after_staged_ns=(101_000_000, 1_100_000),
    )
    both = cost(plan[0], noise=NOISE)
    stall = metrics(compared(make, both, [*both, chance], plan))["stall"]
    assert (stall.head, stall.verdict) == (stall.base, "same")


@pytest.mark.parametrize("cache", ["warm", "memory"])
def test_loads_out_of_a_cache_are_compared_in_seconds(make: Make, cache: str) -> None:
    plan = [item()]
    base = changed(cost(plan[0]), "load", cache=cache)
    faster_disk = changed(base, "load", ceilings=records.ceilings(0.05))
    load = metrics(compared(make, base, faster_disk, plan))["load"]
    # The disk has no part in it.
    assert (load.unit, load.base, load.ratio) == ("s", 0.2, Estimate(1.0, 1.0, 1.0))
    slower_copy = changed(base, "state", memory_copy_ns=6_500_000)  # from 5 ms
    load = metrics(compared(make, base, slower_copy, plan))["load"]
    assert load.ratio.high == pytest.approx(1.3)


def test_a_checkpoint_without_files_is_not_compared_as_durable(make: Make) -> None:
    plan = [replace(item(), files=False)]
    found = compared(make, cost(plan[0]), cost(plan[0], slower=2.0), plan)
    assert "durable" not in metrics(found)
    assert "stall" in metrics(found)


def test_a_cost_without_samples_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [item()]
    run = make(plan, cost(plan[0]))
    columns = dict(comparison.metrics.columns_of(CostRow))
    columns["stall_s"] = replace(columns["stall_s"], of=None)
    monkeypatch.setattr(comparison.metrics, "columns_of", lambda row_class: columns)
    with pytest.raises(TypeError, match="'stall_s' of CostRow is a cost, so it needs 'of'"):
        comparison.of_runs(run, run)


# --- drift between two runs


def test_a_stall_is_only_as_certain_as_the_copy_was_the_same(make: Make) -> None:
    plan = [item()]
    base = cost(plan[0])
    slower = cost(plan[0], 1.5)
    assert metrics(compared(make, base, slower, plan))["stall"].verdict == "slower"
    slower_copy = changed(slower, "state", memory_copy_ns=10_000_000)  # from 5 ms
    stall = metrics(compared(make, base, slower_copy, plan))["stall"]
    assert stall.verdict == "inconclusive"
    assert stall.drift == pytest.approx(0.693, abs=1e-3)


def test_a_stall_is_only_as_certain_as_the_disk_was_the_same(make: Make) -> None:
    """It does not matter of which requests the ceilings were made."""
    plan = [item()]
    base = make(plan, [calibration(), *cost(plan[0])])
    slower_disk = cost(plan[0], 1.5, ceilings=records.ceilings(0.15))
    for made in (calibration(), calibration(write_depth=7)):
        found = comparison.of_runs(base, make(plan, [made, *slower_disk]))
        assert metrics(found)["stall"].verdict == "inconclusive"


@pytest.mark.parametrize(
    ("in_ceilings", "share"), [(1.0, 0.0), (1.25, 0.2), (2.0, 0.5), (0.8, 0.25), (0.4, 1.0)]
)
def test_times_in_ceilings_are_as_uncertain_as_the_share_without_the_disk(
    make: Make, in_ceilings: float, share: float
) -> None:
    plan = [item()]
    base = cost(plan[0], ceilings=records.ceilings(0.4 / in_ceilings))
    base = changed(base, "load", ceilings=records.ceilings(0.2 / in_ceilings))
    moved = changed(base, "state", memory_copy_ns=6_500_000)  # from 5 ms
    certain = metrics(compared(make, base, base, plan))
    uncertain = metrics(compared(make, base, moved, plan))
    for name in ("durable", "load"):
        assert uncertain[name].ratio.value == certain[name].ratio.value
        wider = certain[name].ratio.low / uncertain[name].ratio.low
        assert wider == pytest.approx(1.0 + 0.3 * share, abs=1e-3)


def test_the_share_without_the_disk_is_that_of_the_base(make: Make) -> None:
    """So a slower head is not the less certain."""
    plan = [item()]
    ceilings = records.ceilings(0.4)
    head = changed(cost(plan[0], 1.5, ceilings=ceilings), "state", memory_copy_ns=10_000_000)
    found = compared(make, cost(plan[0], ceilings=ceilings), head, plan)
    assert metrics(found)["durable"].verdict == "slower"


def test_one_slow_copy_in_memory_is_not_the_machines(make: Make) -> None:
    plan = [item()]
    base = cost(plan[0])
    head = cost(plan[0], 1.15)
    one_slow = []
    for record in base:
        if record.kind == "state" and record.process == 5:
            record = replace(record, memory_copy_ns=9 * record.memory_copy_ns)
        one_slow.append(record)
    expected = metrics(compared(make, base, head, plan))
    assert metrics(compared(make, one_slow, head, plan)) == expected


# --- training


def test_training_is_compared_as_time_with_over_time_without(make: Make) -> None:
    plan = [item(experiment="train", every=2)]
    # overheads of 0 and of a quarter of the training
    found = compared(make, trained(plan[0], 0.0), trained(plan[0], 0.25), plan)
    assert metrics(found)["training"].ratio.value == pytest.approx(1.25, rel=1e-3)
    assert found.regressed


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(
    ("base", "head", "wobble", "expected"),
    [
        (0.03, 0.06, 0.001, "slower"),  # twice the overhead, 2.9 % of the time with checkpoints
        (0.06, 0.03, 0.001, "faster"),
        (0.03, 0.06, 0.05, "inconclusive"),  # the interval decides first
        (0.002, 0.008, 0.001, "same"),  # four times the overhead, and less than 1 % of the training
        (0.03, 0.03, 0.001, "same"),
        # the same to 5 % of the training, which would hide an overhead that doubles
        (0.03, 0.03, 0.015, "inconclusive"),
        (1.0, 1.04, 0.001, "same"),  # 4 % of the training, and not 5 % of the overhead
        (1.0, 1.07, 0.001, "slower"),
        (-0.01, 0.005, 0.001, "slower"),
        # more for certain, and not for certain by as much as counts
        (0.03, 0.0385, 0.002, "inconclusive"),
    ],
)
def test_an_overhead_counts_by_itself_and_by_the_training(
    make: Make, paired: bool, base: float, head: float, wobble: float, expected: str
) -> None:
    plan = [item(experiment="train", every=2, arm=arm) for arm in (ARMS if paired else ("", ""))]
    of_base = trained(plan[0], base, wobble)
    of_head = []
    for record in trained(plan[1], head, wobble):
        of_head.append(replace(record, process=(record.process + 3) % PROCESSES))
    if paired:
        found = comparison.of_arms(make(plan, [*of_base, *of_head]))
    else:
        found = comparison.of_runs(make(plan[:1], of_base), make(plan[1:], of_head))
    assert metrics(found)["training"].verdict == expected
    assert found.regressed == (expected == "slower")


@pytest.mark.parametrize(
    ("base_s", "head_s", "ratio"),  # (training without checkpoints, what they add)
    [
        ((0.4, 0.1), (0.36, 0.1), 1.022),  # a larger share of the training, and no more seconds
        ((0.4, 0.212), (0.34, 0.212), 1.061),
        ((0.4, 0.1), (0.8, 0.15), 0.95),  # half as many seconds more, and a smaller share
    ],
)
def test_an_overhead_whose_seconds_and_share_disagree_is_neither_slower_nor_faster(
    make: Make, base_s: tuple[float, float], head_s: tuple[float, float], ratio: float
) -> None:
    plan = [item(experiment="train", every=2)]
    sides = []
    for plain_s, added_s in (base_s, head_s):
        sides.append(trained(plan[0], added_s / plain_s, plain_s=plain_s))
    training = metrics(compared(make, *sides, plan))["training"]
    assert training.ratio.value == pytest.approx(ratio, abs=1e-3)
    assert training.ratio.low > 1.0 or training.ratio.high < 1.0
    assert training.verdict == "inconclusive"


def test_an_overhead_is_only_as_certain_as_the_disk_was_the_same(make: Make) -> None:
    """The saves of the same run tell the disk's change, because a training measures no ceiling."""
    plan = [item(), item(experiment="train", every=2)]
    base = [*cost(plan[0], ceilings=records.ceilings(0.1)), *trained(plan[1], 0.03)]
    for ceiling_s, expected in ((0.1, "slower"), (0.3, "inconclusive")):
        head = [*cost(plan[0], ceilings=records.ceilings(ceiling_s)), *trained(plan[1], 0.06)]
        assert metrics(compared(make, base, head, plan), row=1)["training"].verdict == expected


def test_an_overhead_is_only_as_certain_as_the_copy_was_the_same(make: Make) -> None:
    plan = [item(experiment="train", every=2)]
    base = trained(plan[0], 0.03)
    same_copy = trained(plan[0], 0.06)
    assert metrics(compared(make, base, same_copy, plan))["training"].verdict == "slower"
    slower_copy = trained(plan[0], 0.06, memory_copy_ns=12_000_000)
    assert metrics(compared(make, base, slower_copy, plan))["training"].verdict == "inconclusive"


# --- arms


def test_processes_in_pairs_cancel_what_they_share(make: Make) -> None:
    of_the_machine = (1.0, 2.5, 0.7, 1.8, 1.2, 3.0)
    found = comparison.of_arms(make(*arms(1.15, of_the_machine)))
    assert found.paired
    assert metrics(found)["durable"].verdict == "slower"
    assert found.rows[0].name == "raw buffered"
    assert "arm" not in found.rows[0].group


def test_arms_without_a_process_in_common_are_inconclusive(make: Make) -> None:
    plan, found = arms(1.5, NOISE)
    apart = []
    for record in without(found, "syscalls"):
        if record.case == plan[1].case.id:
            record = replace(record, process=record.process + 100)
        apart.append(record)
    durable = metrics(comparison.of_arms(make(plan, apart)))["durable"]
    assert durable.verdict == "inconclusive"
    assert durable.ratio.value == pytest.approx(1.5)


@pytest.mark.parametrize("indices", [(0,), (1, 2), (0, 1, 2)])
def test_disturbed_samples_count_like_others(make: Make, indices: tuple[int, ...]) -> None:
    plan, found = arms(1.15, NOISE)
    clean: list[Record] = []
    noisy: list[Record] = []
    for record in found:
        if record.kind == "save" and record.case == plan[1].case.id:
            record = replace(record, save_ns=record.save_ns * (record.index + 4) // 4)
        clean.append(record)
        if record.kind == "save" and record.index in indices:
            record = replace(record, disturbed=True)
        noisy.append(record)
    ratios = []
    for some in (clean, noisy):
        ratios.append(metrics(comparison.of_arms(make(plan, some)))["durable"].ratio)
    assert ratios[0] == ratios[1]
