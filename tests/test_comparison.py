"""What is called slower, faster, the same or inconclusive, what always counts, and what is never compared."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import records
from conftest import ROOT, planned
from scipy import stats

from harness.analysis import comparison, comparison_output, ratios
from harness.analysis.comparison import ARMS, ComparedRow, Comparison, Figure
from harness.analysis.runs import ReadRun, read_run
from harness.analysis.statistics import Estimate, Samples
from harness.cli import compare
from harness.driver import machine
from harness.run import store
from harness.run.errors import IncomparableError
from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase, Selection
from harness.wire.records import Record

Make = Callable[..., ReadRun]
PROCESSES = 6
WHOLE = Selection.of(["raw"])
NOISE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return machine.capture(tmp_path_factory.mktemp("scratch"))


@pytest.fixture
def make(tmp_path: Path, here: Manifest) -> Make:
    """Store a run made up of records and read it again."""

    def run(
        plan: Sequence[PlannedCase],
        found: Sequence[Record],
        suite: str = "gate",
        selection: Selection | None = WHOLE,
        settings: store.Settings | None = None,
        **machine: object,
    ) -> ReadRun:
        arms = {arm: {"asked": ["."]} for arm in sorted({item.case.arm for item in plan} - {""})}
        made_here = replace(here, **machine)
        stored = store.create(
            tmp_path / "results",
            suite,
            ["pytest"],
            plan,
            made_here,
            arms=arms,
            settings=settings,
            selection=selection,
        )
        for record in found:
            stored.append(record)
        stored.close()
        return read_run(stored.folder)

    return run


def item(method: str = "buffered", **changes: object) -> PlannedCase:
    made = planned(method, samples=2, processes=PROCESSES)
    return replace(made, case=replace(made.case, **changes))


def cost(
    of: PlannedCase, slower: float = 1.0, noise: Sequence[float] = NOISE, **changes: object
) -> list[Record]:
    """Saves, loads and the rest of a cost row; a save takes 0.4 s times `slower` and the noise of its process."""
    case, found = of.case.id, []
    for process, factor in zip(range(of.processes), noise, strict=True):
        found.append(records.state(case, process=process))
        found.append(records.verified(case, process=process))
        for index in range(of.samples):
            phase_ns = int(100_000_000 * slower * factor)
            phases = dict.fromkeys(("save_ns", "staged_ns", "finished_ns", "sync_ns"), phase_ns)
            found.append(records.save(case, process=process, index=index, **phases | changes))
            found.append(records.load(case, process=process, index=index))
    return [*found, records.syscalls(case)]


def figures(found: Comparison, row: int = 0) -> dict[str, Figure]:
    return {figure.name: figure for figure in found.rows[row].figures}


def compared(
    make: Make, base: Sequence[Record], head: Sequence[Record], plan: Sequence[PlannedCase]
) -> Comparison:
    return comparison.of_runs(make(plan, base), make(plan, head))


# --- verdicts
# -----------------------------------------------------------------------------------------------------------------


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
    found = compared(
        make, cost(plan[0], noise=noise), cost(plan[0], slower, noise=tuple(reversed(noise))), plan
    )
    assert figures(found)["durable"].verdict == expected
    assert found.regressed == (expected == "slower")


def test_a_ratio_is_a_cost_head_over_base(make: Make) -> None:
    plan = [item()]
    durable = figures(compared(make, cost(plan[0]), cost(plan[0], 1.2), plan))["durable"]
    assert durable.ratio.value == pytest.approx(1.2, rel=1e-6)
    assert durable.ratio.low < 1.2 < durable.ratio.high
    assert (durable.base, durable.head) == (
        pytest.approx(4.0, rel=0.01),
        pytest.approx(4.8, rel=0.01),
    )


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


def test_many_rows_make_every_interval_wider(make: Make) -> None:
    few, many = [item()], [item(dropout=0.1 + 0.01 * number) for number in range(20)]
    widths = []
    for plan in (few, many):
        base = [record for of in plan for record in cost(of)]
        found = compared(make, base, base, plan)
        assert found.tests == 3 * len(plan)
        widths.append(figures(found)["durable"].ratio.half_width)
    assert widths[1] > 1.5 * widths[0]


def test_a_stall_is_only_as_certain_as_the_machine_was_the_same(make: Make) -> None:
    plan = [item()]
    moved = [
        replace(record, memory_copy_ns=2 * record.memory_copy_ns)
        if record.kind == "state"
        else record
        for record in cost(plan[0])
    ]
    slower = cost(plan[0], 1.5)
    assert figures(compared(make, cost(plan[0]), slower, plan))["stall"].verdict == "slower"
    elsewhere = [
        *(record for record in slower if record.kind != "state"),
        *(record for record in moved if record.kind == "state"),
    ]
    assert (
        figures(compared(make, cost(plan[0]), elsewhere, plan))["stall"].verdict == "inconclusive"
    )


@pytest.mark.parametrize(
    ("in_ceilings", "share"), [(1.0, 0.0), (1.25, 0.2), (2.0, 0.5), (0.8, 0.25), (0.4, 1.0)]
)
def test_times_in_ceilings_are_as_uncertain_as_the_share_beside_the_disk(
    make: Make, in_ceilings: float, share: float
) -> None:
    plan = [item()]
    found = []
    for record in cost(plan[0], ceilings=records.ceilings(0.4 / in_ceilings)):
        is_load = record.kind == "load"
        found.append(
            replace(record, ceilings=records.ceilings(0.2 / in_ceilings)) if is_load else record
        )
    moved = [
        replace(record, memory_copy_ns=6_500_000) if record.kind == "state" else record
        for record in found
    ]  # from 5 ms
    still, uncertain = (
        figures(compared(make, found, found, plan)),
        figures(compared(make, found, moved, plan)),
    )
    for name in ("durable", "load"):
        assert uncertain[name].ratio.value == still[name].ratio.value
        assert still[name].ratio.low / uncertain[name].ratio.low == pytest.approx(
            1.0 + 0.3 * share, abs=1e-3
        )


def test_a_slower_head_is_not_the_less_certain(make: Make) -> None:
    plan = [item()]
    ceilings = records.ceilings(0.4)
    head = cost(plan[0], 1.5, ceilings=ceilings)
    moved = [
        replace(record, memory_copy_ns=10_000_000) if record.kind == "state" else record
        for record in head
    ]
    assert (
        figures(compared(make, cost(plan[0], ceilings=ceilings), moved, plan))["durable"].verdict
        == "slower"
    )


@pytest.mark.parametrize("cache", ["warm", "memory"])
def test_loads_beside_the_disk_are_told_in_seconds(make: Make, cache: str) -> None:
    plan = [item()]
    found = [
        replace(record, cache=cache) if record.kind == "load" else record
        for record in cost(plan[0])
    ]
    faster_disk = [
        replace(record, ceilings=records.ceilings(0.05)) if record.kind == "load" else record
        for record in found
    ]
    load = figures(compared(make, found, faster_disk, plan))["load"]
    assert (load.unit, load.base, load.ratio) == ("s", 0.2, Estimate(1.0, 1.0, 1.0)), (
        "the disk has no part in it"
    )
    slower = [
        replace(record, memory_copy_ns=6_500_000) if record.kind == "state" else record
        for record in found
    ]  # from 5 ms
    assert figures(compared(make, found, slower, plan))["load"].ratio.high == pytest.approx(1.3)


def test_a_stall_is_as_uncertain_as_the_disk_whatever_requests_told_it(make: Make) -> None:
    plan = [item()]
    first = next(record for record in records.one_of_each() if record.kind == "calibration")
    base = make(plan, [first, *cost(plan[0])])
    slower_disk = cost(plan[0], 1.5, ceilings=records.ceilings(0.15))
    for made in (first, replace(first, write_depth=7)):
        assert (
            figures(comparison.of_runs(base, make(plan, [made, *slower_disk])))["stall"].verdict
            == "inconclusive"
        )


def test_stalls_below_a_millisecond_are_alike(make: Make) -> None:
    plan = [item()]
    short, longer = ({"save_ns": 1_000 * times, "staged_ns": 1_000} for times in (1, 100))
    assert (
        figures(compared(make, cost(plan[0], **short), cost(plan[0], **longer), plan))[
            "stall"
        ].verdict
        == "same"
    )


def test_training_is_compared_as_time_with_over_time_without(make: Make) -> None:
    plan = [item(experiment="train", every=2)]
    case = plan[0].case.id

    def blocks(block_s: float) -> list[Record]:
        made: list[Record] = [
            records.verified(case, process=process) for process in range(PROCESSES)
        ]
        for process, factor in enumerate(NOISE):
            made += [
                records.training(
                    case, process=process, index=index, block_ns=int(1e9 * block_s * factor)
                )
                for index in (0, 1)
            ]
        return made

    # overheads of 0 and of a quarter of the training
    found = compared(make, blocks(0.4), blocks(0.5), plan)
    assert figures(found)["training"].ratio.value == pytest.approx(1.25, rel=1e-6)
    assert found.regressed


def trained(
    of: PlannedCase, overhead: float, wobble: float = 0.001, plain_s: float = 0.4, **changes: Any
) -> list[Record]:
    """Blocks with this overhead, a little more or less in each process, between blocks of `plain_s` without checkpoints."""
    found: list[Record] = []
    for process, sign in zip(range(of.processes), (1, -1, 0, -1, 1, 0), strict=True):
        plain_ns = int(1e9 * plain_s)
        times = {
            "plain_before_ns": plain_ns,
            "plain_after_ns": plain_ns,
            "block_ns": int(plain_ns * (1 + overhead + sign * wobble)),
        }
        found += [
            records.training(of.case.id, process=process, index=index, **times)
            for index in range(2)
        ]
        found += [
            records.verified(of.case.id, process=process),
            records.state(of.case.id, process=process, **changes),
        ]
    return found


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
    sides = [trained(of, overhead, wobble) for of, overhead in zip(plan, (base, head), strict=True)]
    sides[1] = [replace(record, process=(record.process + 3) % PROCESSES) for record in sides[1]]
    if paired:
        found = comparison.of_arms(make(plan, [*sides[0], *sides[1]]))
    else:
        found = comparison.of_runs(
            *(make([of], side) for of, side in zip(plan, sides, strict=True))
        )
    assert figures(found)["training"].verdict == expected
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
    base, head = (
        trained(plan[0], added_s / plain_s, plain_s=plain_s)
        for plain_s, added_s in (base_s, head_s)
    )
    training = figures(compared(make, base, head, plan))["training"]
    assert training.ratio.value == pytest.approx(ratio, abs=1e-3)
    assert training.ratio.low > 1.0 or training.ratio.high < 1.0
    assert training.verdict == "inconclusive"


def test_an_overhead_is_only_as_certain_as_the_disk_was_the_same(make: Make) -> None:
    plan = [item(), item(experiment="train", every=2)]
    base = [*cost(plan[0], ceilings=records.ceilings(0.1)), *trained(plan[1], 0.03)]
    for ceiling_s, expected in ((0.1, "slower"), (0.3, "inconclusive")):
        head = [*cost(plan[0], ceilings=records.ceilings(ceiling_s)), *trained(plan[1], 0.06)]
        assert figures(compared(make, base, head, plan), row=1)["training"].verdict == expected


def test_an_overhead_is_only_as_certain_as_the_machine_was_the_same(make: Make) -> None:
    plan = [item(experiment="train", every=2)]
    base = trained(plan[0], 0.03)
    assert (
        figures(compared(make, base, trained(plan[0], 0.06), plan))["training"].verdict == "slower"
    )
    moved = trained(plan[0], 0.06, memory_copy_ns=12_000_000)
    assert figures(compared(make, base, moved, plan))["training"].verdict == "inconclusive"


# --- arms
# ---------------------------------------------------------------------------------------------------------------------


def arms(slower: float, noise: Sequence[float]) -> tuple[list[PlannedCase], list[Record]]:
    plan = [item(arm=arm) for arm in ARMS]
    return plan, [*cost(plan[0], noise=noise), *cost(plan[1], slower, noise=noise)]


def test_processes_in_pairs_cancel_what_they_share(make: Make) -> None:
    wild = (1.0, 2.5, 0.7, 1.8, 1.2, 3.0)  # the machine's, in both arms
    found = comparison.of_arms(make(*arms(1.15, wild)))
    assert found.paired
    assert figures(found)["durable"].verdict == "slower"
    assert found.rows[0].name == "raw buffered"
    assert "arm" not in found.rows[0].group


def test_arms_without_a_process_in_common_are_inconclusive(make: Make) -> None:
    plan, found = arms(1.5, NOISE)
    apart = [
        replace(record, process=record.process + 100 * (record.case == plan[1].case.id))
        for record in without(found, "syscalls")
    ]
    durable = figures(comparison.of_arms(make(plan, apart)))["durable"]
    assert durable.verdict == "inconclusive"
    assert durable.ratio.value == pytest.approx(1.5)


@pytest.mark.parametrize("indices", [(0,), (1, 2), (0, 1, 2)])
def test_disturbed_samples_count_like_others(make: Make, indices: tuple[int, ...]) -> None:
    plan, found = arms(1.15, NOISE)
    slowed = plan[1].case.id
    rising = [
        replace(record, save_ns=record.save_ns * (record.index + 4) // 4)
        if record.kind == "save" and record.case == slowed
        else record
        for record in found
    ]
    disturbed = [
        replace(r, disturbed=True) if r.kind == "save" and r.index in indices else r for r in rising
    ]
    clean, noisy = (
        figures(comparison.of_arms(make(plan, some)))["durable"].ratio
        for some in (rising, disturbed)
    )
    assert noisy == clean


def test_a_run_of_one_arm_is_not_compared_with_itself(make: Make) -> None:
    plan = [item()]
    with pytest.raises(comparison.Unlike, match="has no two arms"):
        comparison.of_arms(make(plan, cost(plan[0])))


def test_a_run_of_two_arms_is_not_compared_with_another(make: Make) -> None:
    plan = [item()]
    with pytest.raises(comparison.Unlike, match="has two arms"):
        comparison.of_runs(make(plan, cost(plan[0])), make(*arms(1.0, NOISE)))


# --- correctness
# --------------------------------------------------------------------------------------------------------------


def faults(
    make: Make, head: Sequence[Record], head_plan: Sequence[PlannedCase] | None = None
) -> str:
    plan = [item()]
    found = comparison.of_runs(make(plan, cost(plan[0])), make(head_plan or plan, head))
    assert found.regressed == bool(found.rows[0].faults)
    return "; ".join(found.rows[0].faults)


def without(found: Sequence[Record], kind: str) -> list[Record]:
    return [record for record in found if record.kind != kind]


def test_a_row_that_fails_now_counts(make: Make) -> None:
    head = [
        *cost(item()),
        records.failure(item().case.id, phase="verify", reason="Mismatch: 1 of 9 leaves"),
    ]
    assert faults(make, head) == "failed in verify: Mismatch: 1 of 9 leaves"


@pytest.mark.parametrize(
    ("race", "reason", "counts"),
    [(True, "OSError: torn", False), (False, "OSError: torn", True), (True, "Typo", True)],
)
def test_a_row_that_fails_by_a_declared_race_does_not_count(
    make: Make, race: bool, reason: str, counts: bool
) -> None:
    plan = [replace(item(), race=race, expected_failure="torn")]
    failed = [*cost(plan[0]), records.failure(plan[0].case.id, reason=reason)]
    for base, head in ((cost(plan[0]), failed), (failed, cost(plan[0]))):
        found = compared(make, base, head, plan)
        assert any("by a race in its framework" in remark for remark in found.remarks) != counts
        assert found.regressed == (counts and head is failed)


@pytest.mark.parametrize("race", [True, False])
@pytest.mark.parametrize(
    ("before", "now", "counts"),
    [("torn", "torn", False), ("torn", "lost", True), ("lost", "torn", False)],
)
def test_a_row_that_fails_otherwise_than_declared_counts(
    make: Make, before: str, now: str, counts: bool, race: bool
) -> None:
    plan = [replace(item(), race=race, expected_failure="torn")]
    base, head = (
        [*cost(plan[0]), records.failure(plan[0].case.id, reason=reason)]
        for reason in (before, now)
    )
    assert compared(make, base, head, plan).regressed is counts


def test_a_lost_flush_counts(make: Make) -> None:
    head = [
        *without(cost(item()), "syscalls"),
        records.syscalls(item().case.id, durability="never"),
    ]
    assert faults(make, head) == "safety after a power loss was 'at return' and is 'never'"


def test_what_could_not_be_traced_does_not_count(make: Make) -> None:
    head = [
        *without(cost(item()), "syscalls"),
        records.syscalls(item().case.id, durability="unknown", data_durability="unknown"),
    ]
    assert faults(make, head) == ""


def test_lost_coverage_counts_and_stays_the_same_row(make: Make) -> None:
    less = item(covers="weights")
    assert faults(make, cost(less), [less]) == "coverage was 'full' and is 'weights'"


@pytest.mark.parametrize(
    ("file_bytes", "counts"), [(100_000, False), (100_100, False), (100_101, True), (99_000, False)]
)
def test_files_may_grow_by_a_thousandth(make: Make, file_bytes: int, counts: bool) -> None:
    plan = [item()]
    found = compared(
        make, cost(plan[0], file_bytes=100_000), cost(plan[0], file_bytes=file_bytes), plan
    )
    assert bool(found.rows[0].faults) is counts
    assert bool(found.rows[0].gains) is (file_bytes < 99_900)


def test_a_resume_that_is_not_bitwise_any_more_counts(make: Make) -> None:
    plan = [replace(item(experiment="resume"), processes=1)]
    case = plan[0].case.id
    same = [records.straight(case), records.interrupt(case), records.resume(case)]
    other = [
        *same[:2],
        records.resume(case, identical=False, diverged_at=5, first_count=1, final_count=1),
    ]
    assert compared(make, same, other, plan).rows[0].faults == ("was bitwise and is not any more",)
    assert compared(make, other, same, plan).rows[0].gains == ("is bitwise now",)


def test_a_resume_that_does_not_get_back_what_was_saved_any_more_counts(make: Make) -> None:
    plan = [replace(item(experiment="resume"), processes=1)]
    case = plan[0].case.id
    before = [records.straight(case), records.interrupt(case)]
    differs = {"identical": False, "first_count": 1, "final_count": 1}
    later, at_once = (
        [*before, records.resume(case, **differs, diverged_at=step, restored=step > 4)]
        for step in (5, 4)
    )  # neither is bitwise
    assert compared(make, later, at_once, plan).rows[0].faults == (
        "was restored and is not any more",
    )


def test_ranks_own_values_that_are_not_covered_any_more_count(make: Make) -> None:
    every, one = ([item(world=2, rank_local=covers)] for covers in (True, False))
    runs = []
    for plan in (every, one):
        found = cost(plan[0])
        runs.append(
            make(
                plan, [*found, *(replace(record, rank=1) for record in without(found, "syscalls"))]
            )
        )
    assert comparison.of_runs(*runs).rows[0].faults == (
        "covered every rank's own values and covers one rank's alone now",
    )
    assert comparison.of_runs(*reversed(runs)).rows[0].gains == (
        "covers every rank's own values now",
    )


def test_a_row_that_is_gone_counts_within_a_suite(make: Make) -> None:
    plan = [item(), item("npz")]
    both = [record for of in plan for record in cost(of)]
    assert compared_rows(comparison.of_runs(make(plan, both), make(plan[:1], cost(plan[0])))) == [
        ("raw buffered", ()),
        ("raw npz", ("the row is gone",)),
    ]


def test_rows_of_another_suite_are_left_out_and_that_is_said(make: Make) -> None:
    plan = [item(), item("npz")]
    both = [record for of in plan for record in cost(of)]
    found = comparison.of_runs(make(plan, both), make(plan[:1], cost(plan[0]), suite="other"))
    assert compared_rows(found) == [("raw buffered", ())]
    assert any("left out" in remark for remark in found.remarks)


def test_loads_from_elsewhere_are_not_compared(make: Make) -> None:
    plan = [item()]
    warm = [
        replace(record, cache="warm", load_ns=1000) if record.kind == "load" else record
        for record in cost(plan[0])
    ]
    found = compared(make, cost(plan[0]), warm, plan)
    assert "load" not in figures(found)
    assert list(found.remarks) == [
        "raw buffered: loads were cold and are warm, so they are not compared"
    ]


def test_that_nobody_watched_the_flushing_is_said(make: Make) -> None:
    plan = [item()]
    found = compared(make, cost(plan[0]), without(cost(plan[0]), "syscalls"), plan)
    assert not found.regressed
    assert [
        remark
        for remark in found.remarks
        if "what survives a power loss is not known any more" in remark
    ]


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({}, []),
        ({"write_depth": 7}, ["durable"]),
        ({"read_block_bytes": 7}, ["load"]),
        ({"write_depth": 7, "read_depth": 7}, None),
    ],
)
def test_what_is_told_in_ceilings_of_other_requests_is_not_compared(
    make: Make, changes: dict[str, int], left_out: list[str] | None
) -> None:
    plan = [item()]
    first = next(record for record in records.one_of_each() if record.kind == "calibration")
    base, head = (
        make(plan, [made, *cost(plan[0], factor)])
        for made, factor in ((first, 1.0), (replace(first, **changes), 1.5))
    )
    found = comparison.of_runs(base, head)
    asked = ["durable", "load"] if left_out is None else left_out
    assert [name for name in ("durable", "stall", "load") if name not in figures(found)] == asked
    assert [remark.partition(":")[0] for remark in found.remarks] == [" and ".join(asked)] * bool(
        asked
    )
    assert list(found.rows[0].left_out) == asked
    assert found.is_hollow is (left_out is None)


@pytest.mark.parametrize(("kind", "figure"), [("save", "durable"), ("load", "load")])
def test_what_is_told_in_ceilings_of_older_versions_is_not_compared(
    make: Make, kind: str, figure: str
) -> None:
    plan = [item()]
    older = cost(plan[0])
    newer = [
        replace(record, ceilings=replace(record.ceilings, settled=True))
        if record.kind == kind
        else record
        for record in cost(plan[0], 1.5)
    ]
    found = compared(make, older, newer, plan)
    assert list(found.rows[0].left_out) == [figure]
    assert figure not in figures(found)
    (remark,) = found.remarks
    assert remark.startswith(
        f"{figure}: not compared, for the ceilings of one side were taken without memory having been backed"
    )
    assert not compared(make, newer, newer, plan).remarks


def test_a_baseline_of_an_older_version_is_refused_before_anything_is_measured(
    make: Make, tmp_path: Path
) -> None:
    plan = [item()]
    older = cost(plan[0])
    newer = [
        replace(record, ceilings=replace(record.ceilings, settled=True))
        if record.kind in ("save", "load")
        else record
        for record in older
    ]
    compare._require_settled(make(plan, newer), tmp_path)
    mixed = [old if old.kind == "load" else new for old, new in zip(older, newer, strict=True)]
    for baseline in (make(plan, older), make(plan, mixed)):
        with pytest.raises(
            IncomparableError, match=f"as older versions did: remove {tmp_path} to have a new one"
        ):
            compare._require_settled(baseline, tmp_path)


def test_one_slow_copy_in_memory_is_not_the_machines(make: Make) -> None:
    plan = [item()]
    slow = [
        replace(record, memory_copy_ns=9 * record.memory_copy_ns)
        if record.kind == "state" and record.process == 5
        else record
        for record in cost(plan[0])
    ]
    base, head = cost(plan[0]), cost(plan[0], 1.15)
    assert figures(compared(make, slow, head, plan)) == figures(compared(make, base, head, plan))


def test_other_packages_are_said(make: Make) -> None:
    plan = [item()]
    old = records.worker(packages={"numpy": "2.4.6", "zarr": "3.1"})
    new = records.worker(packages={"numpy": "2.5.0", "blosc": "1.11"})
    base, head = cost(plan[0]), cost(plan[0])
    assert list(compared(make, [*base, old], [*head, old], plan).remarks) == []
    found = compared(make, [*base, old], [*head, new], plan)
    assert list(found.remarks) == [
        "packages: blosc (absent) to 1.11, numpy 2.4.6 to 2.5.0, zarr 3.1 to (absent)"
    ]
    another = replace(new, framework="jax")
    assert list(compared(make, [*base, old], [*head, old, another], plan).remarks) == [], (
        "of a framework that one run lacks"
    )


@pytest.mark.parametrize(
    ("world", "remarks"), [(1, []), (2, ["mpirun: the environment's to /usr/bin/mpirun"])]
)
def test_another_mpirun_is_said_where_it_started_ranks(
    make: Make, world: int, remarks: list[str]
) -> None:
    plan = [item(world=world)]
    ranked = [record for record in cost(plan[0]) if record.kind in ("save", "load", "verified")]
    both = [replace(record, rank=rank) for record in ranked for rank in range(world)]
    other = make(plan, both, settings=store.Settings(mpirun="/usr/bin/mpirun"))
    found = comparison.of_runs(make(plan, both), other)
    assert list(found.remarks) == remarks


@pytest.mark.parametrize(
    ("base", "head"),
    [
        (WHOLE, Selection.of(["raw"], methods=["buffered"])),
        (WHOLE, Selection.of(["raw"], methods=["buffered", "fast"])),
        # a suite need not list what was asked for by name
        (Selection.of(["raw"], methods=["buffered", "npz"]), WHOLE),
        (Selection.of(["raw"], worlds=[1, 2]), Selection.of(["raw"], methods=["buffered"])),
        (None, Selection.of(["raw"], methods=["buffered"])),
        (WHOLE, None),
        (None, None),
    ],
    ids=["narrower", "a trait", "a name", "two ways", "of before", "none of npz", "both of before"],
)
def test_a_row_that_a_run_was_not_asked_for_is_left_out(
    make: Make, base: Selection | None, head: Selection | None
) -> None:
    plan = [item(), item("npz")]
    both = [record for of in plan for record in cost(of)]
    found = comparison.of_runs(
        make(plan, both, selection=base), make(plan[:1], cost(plan[0]), selection=head)
    )
    assert compared_rows(found) == [("raw buffered", ())]
    assert not found.regressed
    assert [
        remark for remark in found.remarks if "which was not asked for them: left out" in remark
    ]


@pytest.mark.parametrize(
    ("base", "head"),
    [
        (WHOLE, Selection.of(["raw"], methods=["buffered", "npz"])),
        (
            Selection.of(["raw"], methods=["npz", "buffered"]),
            Selection.of(["raw"], methods=["buffered", "npz", "direct"]),
        ),
        (Selection.of(["raw"], methods=["fast"]), Selection.of(["raw"], methods=["fast"])),
        (WHOLE, Selection.of(["raw"], workloads=["resnet50"])),
        (WHOLE, Selection.of(["raw", "jax"])),
        (None, WHOLE),
    ],
    ids=[
        "by name",
        "by both",
        "by the same trait",
        "another choice",
        "more frameworks",
        "a base of before",
    ],
)
def test_a_row_that_both_runs_were_asked_for_is_missed(
    make: Make, base: Selection | None, head: Selection | None
) -> None:
    plan = [item(), item("npz")]
    both = [record for of in plan for record in cost(of)]
    found = comparison.of_runs(
        make(plan, both, selection=base), make(plan[:1], cost(plan[0]), selection=head)
    )
    assert compared_rows(found)[1:] == [("raw npz", ("the row is gone",))]


def test_a_row_under_another_option_is_left_out(make: Make) -> None:
    plain, double = item(), item("double")
    changed = replace(double, case=replace(double.case, method="double[slowdown=2.0]"))
    base = make([plain, double], [*cost(plain), *cost(double)])
    head = make(
        [plain, changed],
        [*cost(plain), *cost(changed)],
        selection=Selection.of(["raw"], options={"slowdown": 2.0}),
    )
    found = comparison.of_runs(base, head)
    assert compared_rows(found) == [("raw buffered", ())]
    assert len(found.remarks) == 2, "on either side"


def test_a_run_of_before_selections_were_kept_misses_what_its_parts_make_up(make: Make) -> None:
    plan = [item(), item("npz"), item(workload="candle-mlp"), item("npz", workload="candle-mlp")]
    all_of_it, but_one = (
        [record for of in some for record in cost(of)] for some in (plan, plan[:3])
    )
    found = comparison.of_runs(make(plan, all_of_it), make(plan[:3], but_one, selection=None))
    assert [row.faults for row in found.rows] == [(), (), (), ("the row is gone",)]


def test_an_arm_that_lacks_a_row_of_the_other_has_lost_it(make: Make) -> None:
    plan = [item(arm="a"), item(arm="b"), item("npz", arm="a")]
    found = comparison.of_arms(
        make(plan, [record for of in plan for record in cost(of)], selection=None)
    )
    assert compared_rows(found) == [("raw buffered", ()), ("raw npz", ("the row is gone",))]


def test_a_new_row_is_named_and_no_regression(make: Make) -> None:
    plan = [item(), item("npz")]
    both = [record for of in plan for record in cost(of)]
    found = comparison.of_runs(make(plan[:1], cost(plan[0])), make(plan, both))
    assert not found.regressed
    assert any(
        remark.startswith("new in ") and remark.endswith(": raw npz") for remark in found.remarks
    )


def compared_rows(found: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    return [(row.name, row.faults) for row in found.rows]


# --- what is never compared
# ---------------------------------------------------------------------------------------------------


def test_another_machine_is_refused_with_the_reason(make: Make) -> None:
    plan = [item()]
    with pytest.raises(comparison.Unlike, match=r"not measured alike \(machine, filesystem\)"):
        comparison.of_runs(
            make(plan, cost(plan[0])),
            make(plan, cost(plan[0]), machine="elsewhere", filesystem="nfs"),
        )


@pytest.mark.parametrize("missing", ["verified", "load"])
def test_an_interrupted_run_is_refused(make: Make, missing: str) -> None:
    plan = [item()]
    with pytest.raises(
        comparison.Unlike, match="was interrupted; go on with: ckptbench run --resume "
    ):
        comparison.of_runs(make(plan, cost(plan[0])), make(plan, without(cost(plan[0]), missing)))


def test_runs_without_a_row_in_common_are_refused(make: Make) -> None:
    with pytest.raises(comparison.Unlike, match="no row in common"):
        comparison.of_runs(make([item()], cost(item())), make([item("npz")], cost(item("npz"))))


# --- ratios
# -------------------------------------------------------------------------------------------------------------------


def samples(values: Sequence[float]) -> Samples:
    return Samples(np.array(values), np.arange(len(values)))


def test_intervals_of_groups_are_welchs() -> None:
    base, head = [1.0, 1.1, 0.9, 1.05], [1.2, 1.5, 1.3, 1.25, 1.4]
    expected = stats.ttest_ind(np.log(head), np.log(base), equal_var=False).confidence_interval(
        0.99
    )
    found = ratios.of_groups(samples(base), samples(head), 0.99)
    assert (found.low, found.high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))


def test_intervals_of_few_pairs_are_students() -> None:
    base, head = [1.0, 1.1, 0.9, 1.05], [1.2, 1.5, 1.3, 1.25]
    expected = stats.ttest_rel(np.log(head), np.log(base)).confidence_interval(0.99)
    found = ratios.of_pairs(samples(base), samples(head), 0.99)
    assert found is not None
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
        assert found is not None
        excluded += not found.low <= 1.0 <= found.high
        chance = stats.wilcoxon(np.log(head), method="exact").pvalue
        assert (chance <= 1 - confidence) == (not found.low <= 1.0 <= found.high)
        assert found.low <= found.value <= found.high
    assert 0 < excluded < 50


SLOWER = [
    1.15,
    1.16,
    1.13,
    1.17,
    1.14,
    1.15,
    1.12,
    1.18,
    1.15,
    1.16,
    1.14,
    1.13,
    1.17,
    1.16,
    1.15,
    1.14,
]


def test_a_wild_pair_that_points_as_the_others_do_hides_nothing() -> None:
    found = ratios.of_pairs(samples(np.ones(12)), samples([*SLOWER[:11], 3.0]), 0.998)
    assert found is not None
    assert (found.low > 1.1, found.value) == (True, pytest.approx(1.15, abs=0.01))


@pytest.mark.parametrize(("pairs", "reach"), [(14, 0.5), (17, 0.0)])
def test_one_wild_pair_moves_an_end_by_half_of_what_it_is_off_and_among_seventeen_by_nothing(
    pairs: int, reach: float
) -> None:
    """With as many figures as the gate suite has."""
    found = ratios.of_pairs(
        samples(np.ones(pairs)), samples([*SLOWER[: pairs - 1], 0.5]), 1 - 0.03 / 8
    )
    assert found is not None
    assert math.log(found.low) == pytest.approx(
        reach * math.log(0.5) + (1 - reach) * math.log(1.15), abs=0.03
    )
    assert found.value == pytest.approx(1.15, abs=0.01)


@pytest.mark.parametrize("make_ratio", [ratios.of_pairs, ratios.of_groups])
def test_one_process_says_nothing_about_others(make_ratio: Callable[..., Estimate]) -> None:
    found = make_ratio(samples([1.0]), samples([2.0]), 0.95)
    assert (found.value, found.low, found.high) == (2.0, 0.0, float("inf"))


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("processes", [PROCESSES, 12])
def test_intervals_of_few_processes_hold_at_high_confidence(paired: bool, processes: int) -> None:
    """A bootstrap of six processes does not: this is why it is not used here."""
    generator = np.random.default_rng(7)
    confidence, tries, missed = 0.99, 2000, 0
    for _ in range(tries):
        base, head = (samples(np.exp(0.1 * generator.standard_normal(processes))) for _ in range(2))
        found = (ratios.of_pairs if paired else ratios.of_groups)(base, head, confidence)
        assert found is not None
        missed += not found.low <= 1.0 <= found.high
    assert missed <= 1.6 * (1 - confidence) * tries


# --- outputs
# ------------------------------------------------------------------------------------------------------------------

NASTY = 'a|b <script>alert("x")</script> \x1b[31mred\x00 & ]]>'


def nasty() -> Comparison:
    slower = Figure("durable", "ceilings", 1.0, 1.2, Estimate(1.2, 1.1, 1.3), "slower")
    unknown = Figure("stall", "s", 0.1, 0.1, Estimate(1.0, 0.0, float("inf")), "inconclusive")
    row = ComparedRow(
        "group <1>", "raw x", ("0" * 12,), (slower, unknown), (NASTY,), (), {"load": NASTY}
    )
    return Comparison("base", "head", False, 2, (row,), ("a remark",))


def test_junit_is_valid_xml_whatever_a_record_says() -> None:
    root = ElementTree.fromstring(comparison_output.to_junit(nasty()))
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("4", "2", "2")
    messages = [failure.get("message") for failure in root.iter("failure")]
    assert messages[0] == NASTY.replace("\x1b[31m", "").replace("\x00", "\ufffd")
    assert messages[1] == "slower: 1.200 [1.100–1.300]"


def test_markdown_keeps_its_table_whatever_a_record_says() -> None:
    text = comparison_output.to_markdown(nasty())
    assert text.startswith(
        "### 1 of 1 rows got worse: head against base. Figures: 1 slower, 1 inconclusive, 1 not compared."
    )
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {7}


def test_json_has_no_infinity() -> None:
    found = json.loads(
        comparison_output.to_json(nasty()), parse_constant=lambda name: pytest.fail(name)
    )
    assert [figure["ratio_high"] for figure in found["rows"][0]["figures"]] == [1.3, None]
    assert (found["schema"], found["regressed"], found["rows"][0]["faults"]) == (1, True, [NASTY])
    assert found["rows"][0]["left_out"] == {"load": NASTY}


def ckptbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from harness.cli import main; main()", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_exits_with_what_it_found(make: Make, tmp_path: Path) -> None:
    plan = [item()]
    base, slow, elsewhere = (
        make(plan, cost(plan[0])),
        make(plan, cost(plan[0], 1.3)),
        make(plan, cost(plan[0]), machine="elsewhere"),
    )
    results = ("--results", str(tmp_path / "results"))
    worse = ckptbench("compare", base.name, slow.name, "--out", str(tmp_path / "out"), *results)
    assert worse.returncode == 1, worse.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "comparison.json",
        "comparison.md",
        "comparison.xml",
    ]
    same = ckptbench("compare", base.name, base.name, "--format", "json", *results)
    assert (same.returncode, json.loads(same.stdout)["regressed"]) == (0, False)
    refused = ckptbench("compare", base.name, elsewhere.name, *results)
    assert (refused.returncode, "not measured alike (machine)" in refused.stderr) == (3, True)


def test_the_command_does_not_pass_what_it_could_not_compare(make: Make, tmp_path: Path) -> None:
    plan = [item()]
    first = next(record for record in records.one_of_each() if record.kind == "calibration")
    other = replace(first, write_depth=7, read_depth=7)
    base, head, slow = (
        make(plan, [made, *cost(plan[0], factor)])
        for made, factor in ((first, 1.0), (other, 1.0), (other, 1.5))
    )
    results = ("--results", str(tmp_path / "results"))
    hollow = ckptbench("compare", base.name, head.name, *results)
    assert hollow.returncode == 3, hollow.stderr
    assert "neither saves nor loads could: " in " ".join(hollow.stdout.split())
    assert "2 not compared" in " ".join(hollow.stdout.split())
    assert ckptbench("compare", base.name, slow.name, *results).returncode == 1


@pytest.mark.parametrize(
    ("option", "told"),
    [(("--format", "xml"), "unknown format 'xml'"), (("--out", "README.md"), "README.md")],
)
@pytest.mark.parametrize(
    "words",
    [
        ("compare", "a", "b"),
        ("ab", "--b", "slowdown=2.0", "--framework", "raw"),
        ("regress", "--framework", "raw"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_anything_is_measured(
    tmp_path: Path, words: tuple[str, ...], option: tuple[str, str], told: str
) -> None:
    results = tmp_path / "results"
    refused = ckptbench(*words, *option, "--results", str(results))
    assert (refused.returncode, told in refused.stderr, results.exists()) == (2, True, False), (
        refused.stderr
    )
