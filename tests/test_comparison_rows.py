"""Rows and runs: which rows one side lacks, how rows are named, and what is never compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import records
from compared_runs import (
    NOISE,
    WHOLE,
    Make,
    arms,
    compared,
    cost,
    costs,
    item,
    maker,
    row_faults,
    without,
)

from harness.analysis import comparison
from harness.analysis.comparison.sides import side
from harness.run import store
from harness.run.plan import PlannedCase, Selection
from harness.wire.records import Record


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path / "results")


def failing(plan: Sequence[PlannedCase]) -> list[Record]:
    return [records.failure(each.case.id) for each in plan]


def test_runs_that_failed_alike_are_not_called_alike(make: Make) -> None:
    plan = [item(), item("npz")]
    found = comparison.of_runs(make(plan, failing(plan)), make(plan, failing(plan)))
    assert found.is_hollow
    assert [row.failed_on_both for row in found.rows] == [True, True]
    assert list(found.remarks) == [
        "raw buffered: failed on both sides, so nothing of it is compared",
        "raw npz: failed on both sides, so nothing of it is compared",
    ]


def test_one_row_that_failed_on_both_sides_leaves_the_others_compared(make: Make) -> None:
    plan = [item(), item("npz")]
    both = [make(plan, [*costs(plan[:1]), *failing(plan[1:])]) for _ in range(2)]
    found = comparison.of_runs(*both)
    assert not found.is_hollow
    assert list(found.remarks) == ["raw npz: failed on both sides, so nothing of it is compared"]


# --- rows that one side lacks


def test_a_row_that_is_gone_counts_within_a_suite(make: Make) -> None:
    plan = [item(), item("npz")]
    found = comparison.of_runs(make(plan, costs(plan)), make(plan[:1], costs(plan[:1])))
    assert row_faults(found) == [("raw buffered", ()), ("raw npz", ("the row is gone",))]


def test_rows_of_another_suite_are_left_out_and_that_is_said(make: Make) -> None:
    plan = [item(), item("npz")]
    base = make(plan, costs(plan))
    head = make(plan[:1], costs(plan[:1]), suite="other")
    found = comparison.of_runs(base, head)
    assert row_faults(found) == [("raw buffered", ())]
    assert list(found.remarks) == [
        f"1 row is left out of {base.name}, because {head.name} is of suite other, not gate"
    ]


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
    ids=["narrower", "a trait", "a name", "two ways", "older base", "older head", "both older"],
)
def test_a_row_that_a_run_was_not_asked_for_is_left_out(
    make: Make, base: Selection | None, head: Selection | None
) -> None:
    plan = [item(), item("npz")]
    of_base = make(plan, costs(plan), selection=base)
    of_head = make(plan[:1], costs(plan[:1]), selection=head)
    found = comparison.of_runs(of_base, of_head)
    assert row_faults(found) == [("raw buffered", ())]
    assert not found.regressed
    assert list(found.remarks) == [
        f"1 row is left out of {of_base.name}, because {of_head.name} was not asked for it"
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
        "another axis",
        "more frameworks",
        "older base",
    ],
)
def test_a_row_that_both_runs_were_asked_for_is_missed(
    make: Make, base: Selection | None, head: Selection | None
) -> None:
    plan = [item(), item("npz")]
    of_base = make(plan, costs(plan), selection=base)
    of_head = make(plan[:1], costs(plan[:1]), selection=head)
    found = comparison.of_runs(of_base, of_head)
    assert row_faults(found)[1:] == [("raw npz", ("the row is gone",))]


def test_a_row_under_another_option_is_left_out(make: Make) -> None:
    plain, double = item(), item("double")
    slowed = replace(double, case=replace(double.case, method="double[slowdown=2.0]"))
    base = make([plain, double], costs([plain, double]))
    selection = Selection.of(["raw"], options={"slowdown": 2.0})
    head = make([plain, slowed], costs([plain, slowed]), selection=selection)
    found = comparison.of_runs(base, head)
    assert row_faults(found) == [("raw buffered", ())]
    assert len(found.remarks) == 2, "one for each side"


def test_an_older_head_misses_the_rows_whose_parts_occur_in_its_plan(make: Make) -> None:
    plan = [item(), item("npz"), item(workload="candle-mlp"), item("npz", workload="candle-mlp")]
    base = make(plan, costs(plan))
    head = make(plan[:3], costs(plan[:3]), selection=None)
    found = comparison.of_runs(base, head)
    assert [row.faults for row in found.rows] == [(), (), (), ("the row is gone",)]


def test_an_arm_that_lacks_a_row_of_the_other_has_lost_it(make: Make) -> None:
    plan = [item(arm="a"), item(arm="b"), item("npz", arm="a")]
    found = comparison.of_arms(make(plan, costs(plan), selection=None))
    assert row_faults(found) == [("raw buffered", ()), ("raw npz", ("the row is gone",))]


def test_a_new_row_is_named_and_no_regression(make: Make) -> None:
    plan = [item(), item("npz")]
    head = make(plan, costs(plan))
    found = comparison.of_runs(make(plan[:1], costs(plan[:1])), head)
    assert not found.regressed
    assert list(found.remarks) == [f"new in {head.name}: raw npz"]


# --- names


@pytest.mark.parametrize(
    ("changes", "name", "group"),
    [
        ({}, "raw buffered", "resnet50 small on cpu"),
        (
            {"experiment": "train", "every": 2},
            "raw buffered every 2 steps",
            "train: resnet50 small on cpu",
        ),
        (
            {"world": 2, "strategy": "replicated"},
            "raw buffered replicated on 2 ranks",
            "resnet50 small on cpu",
        ),
        ({"settings": {"after": "kill"}}, "raw buffered after=kill", "resnet50 small on cpu"),
    ],
)
def test_a_row_is_named_by_everything_that_tells_it_from_others(
    make: Make, changes: dict[str, object], name: str, group: str
) -> None:
    (row,) = side(make([item(**changes)], [])).rows.values()
    assert (row.name, row.group) == (name, group)


# --- what else changed


def test_other_packages_are_said(make: Make) -> None:
    plan = [item()]
    found = cost(plan[0])
    old = records.worker(packages={"numpy": "2.4.6", "zarr": "3.1"})
    new = records.worker(packages={"numpy": "2.5.0", "blosc": "1.11"})
    assert not compared(make, [*found, old], [*found, old], plan).remarks
    assert list(compared(make, [*found, old], [*found, new], plan).remarks) == [
        "packages: blosc (absent) to 1.11, numpy 2.4.6 to 2.5.0, zarr 3.1 to (absent)"
    ]
    only_in_head = replace(new, framework="jax")
    assert not compared(make, [*found, old], [*found, old, only_in_head], plan).remarks


@pytest.mark.parametrize(
    ("world", "remarks"), [(1, []), (2, ["mpirun: the environment's to /usr/bin/mpirun"])]
)
def test_another_mpirun_is_said_where_it_started_ranks(
    make: Make, world: int, remarks: list[str]
) -> None:
    plan = [item(world=world)]
    found = []
    for record in without(without(cost(plan[0]), "state"), "syscalls"):
        found += [replace(record, rank=rank) for rank in range(world)]
    other = make(plan, found, settings=store.Settings(mpirun="/usr/bin/mpirun"))
    assert list(comparison.of_runs(make(plan, found), other).remarks) == remarks


# --- what is never compared


def test_another_machine_is_refused_with_the_reason(make: Make) -> None:
    plan = [item()]
    here = make(plan, cost(plan[0]))
    elsewhere = make(plan, cost(plan[0]), machine="elsewhere", filesystem="nfs")
    with pytest.raises(comparison.Unlike, match=r"not measured alike \(machine, filesystem\)"):
        comparison.of_runs(here, elsewhere)


@pytest.mark.parametrize("missing", ["verified", "load"])
def test_an_interrupted_run_is_refused(make: Make, missing: str) -> None:
    plan = [item()]
    interrupted = make(plan, without(cost(plan[0]), missing))
    message = f"was interrupted; go on with: ckptbench run --resume {interrupted.stored.folder}"
    with pytest.raises(comparison.Unlike, match=message):
        comparison.of_runs(make(plan, cost(plan[0])), interrupted)


def test_runs_without_a_row_in_common_are_refused(make: Make) -> None:
    base, head = (make([of], cost(of)) for of in (item(), item("npz")))
    with pytest.raises(comparison.Unlike, match="have no row in common"):
        comparison.of_runs(base, head)


def test_a_run_of_one_arm_is_not_compared_with_itself(make: Make) -> None:
    plan = [item()]
    with pytest.raises(comparison.Unlike, match="has no two arms: name a second run"):
        comparison.of_arms(make(plan, cost(plan[0])))


def test_a_run_of_two_arms_is_not_compared_with_another(make: Make) -> None:
    plan = [item()]
    with_arms = make(*arms(1.0, NOISE))
    with pytest.raises(
        comparison.Unlike, match=f"has two arms.*: ckptbench compare {with_arms.stored.folder}"
    ):
        comparison.of_runs(make(plan, cost(plan[0])), with_arms)
