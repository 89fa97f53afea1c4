"""Runs that are killed and continue: the workers' records, and the rows made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import records
from conftest import Measure, faulty, planned

from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.experiments.resume.records import Divergence
from harness.experiments.resume.reference import divergence
from harness.experiments.resume.rows import ResumeRow
from harness.experiments.resume.worker import sum_up_resumed
from harness.run.plan import PlannedCase
from harness.wire.case import Case
from harness.wire.records import Record

CASE = replace(planned().case, experiment="resume")


def of(item: PlannedCase, **changes: object) -> PlannedCase:
    """Return the case in an experiment without samples."""
    return replace(item, case=replace(item.case, **changes), samples=1, warmups=0)


def row(found: list[Record], case: Case = CASE) -> ResumeRow:
    """Return the row of these records, as if all were of the case."""
    (made,) = rows([Wanted(case, 1, 1)], [replace(record, case=case.id) for record in found])
    assert isinstance(made, ResumeRow)
    return made


@pytest.mark.parametrize(
    ("dtype", "first", "second", "ulp"),
    [
        ("float32", 1.0, np.nextafter(np.float32(1), np.float32(2)), 1),
        ("float32", -1.0, np.nextafter(np.float32(-1), np.float32(0)), 1),
        ("float32", -1e-45, 1e-45, 3),  # two denormals, both zeros between them
        ("float64", 1.0, 1.0 + 2**-50, 4),
        ("int64", 3, 5, None),
    ],
)
def test_the_distance_is_counted_in_representable_numbers(
    dtype: str, first: float, second: float, ulp: int | None
) -> None:
    values = [np.array([7, value, 7], dtype=dtype).view(np.uint8) for value in (first, second)]
    assert divergence("leaf", "weight", dtype, *values).max_ulp == ulp


def test_bfloat16_is_counted_in_its_own_numbers() -> None:
    values = [np.array([bits], dtype="<u2").view(np.uint8) for bits in (0x3F80, 0x3F82)]
    found = divergence("leaf", "weight", "bfloat16", *values)
    assert (found.max_ulp, found.max_difference) == (2, 2 * 2**-7)


def test_what_both_have_is_no_difference_whatever_it_is() -> None:
    values = [np.array([np.inf, value], dtype="float32").view(np.uint8) for value in (1.0, 2.0)]
    assert divergence("leaf", "weight", "float32", *values).max_difference == 1.0


def test_what_is_no_number_is_infinitely_far() -> None:
    values = [np.array([value], dtype="float32").view(np.uint8) for value in (1.0, float("nan"))]
    assert divergence("leaf", "weight", "float32", *values).max_difference == float("inf")


def test_runs_are_killed_and_go_on_bit_by_bit(measure: Measure) -> None:
    plan = [
        of(planned("buffered"), experiment="resume"),
        of(planned("npz"), experiment="resume"),
        of(planned("buffered"), experiment="resume", ablated="optimizer"),
        of(planned("buffered"), experiment="resume", ablated="position"),
        of(planned("direct"), experiment="rerun", method="", method_path=""),
    ]
    found = measure(plan)
    whole, npz, no_optimizer, no_position, again = found.rows
    assert [row.status for row in found.rows] == ["ok"] * 5, [row.reason for row in found.rows]
    assert (whole.bitwise, npz.bitwise, again.bitwise) == (True, True, True)
    assert (whole.at_step, whole.steps, whole.repeatable) == (4, 8, True)
    assert no_optimizer.result.startswith("not restored (optimizer: ")
    assert no_position.first_leaves[0].startswith("position/")
    assert (no_position.diverged_at, no_position.first_roles) == (4, ["position"])
    assert not [text for text in found.messages if "warning" in text], "the kill is no breakdown"


def test_every_resumed_run_has_a_process_of_its_own(measure: Measure) -> None:
    found = measure(
        [of(planned("buffered"), experiment="resume"), of(planned("direct"), experiment="resume")]
    )
    jobs = [record.job for record in found.records("worker")]
    assert [job.split("-")[1] for job in jobs] == ["straight", "interrupt", "resume", "resume"]
    assert len({record.pid for record in found.records("worker")}) == 4


@pytest.mark.parametrize("covers", ["full", "weights+optimizer"])
def test_what_a_method_does_not_restore_is_named_at_the_load(measure: Measure, covers: str) -> None:
    """A method that declares it loses the bits all the same, and training is not to blame."""
    (made,) = measure([of(faulty("no-rng", covers=covers), experiment="resume")]).rows
    assert isinstance(made, ResumeRow)
    assert not made.differed_before
    assert (made.status, made.bitwise, made.diverged_at, made.first_roles) == (
        "ok",
        False,
        4,
        ["rng"],
    )
    assert made.result.startswith("not restored")


@pytest.mark.parametrize("fault", ["raises", "killed", "changes-state"])
def test_a_save_that_fails_costs_its_case_alone(measure: Measure, fault: str) -> None:
    found = measure(
        [of(faulty(fault), experiment="resume"), of(planned("buffered"), experiment="resume")]
    )
    assert [row.status for row in found.rows] == ["failed", "ok"]
    assert found.rows[1].bitwise


def test_a_difference_names_step_leaf_and_rank() -> None:
    two = replace(CASE, world=2, launcher="mpirun")
    leaf = Divergence("weights/dense.weight", "weight", 3, 1e-7)
    late = records.resume(
        rank=1,
        identical=False,
        diverged_at=6,
        first=(leaf,),
        first_count=2,
        first_roles=("weight",),
    )
    late = replace(late, final_count=9, final_max_ulp=40)
    found = row([records.straight(), records.straight(rank=1), records.resume(), late], two)
    assert (found.bitwise, found.diverged_at, found.diverged_rank, found.first_max_ulp) == (
        False,
        6,
        1,
        3,
    )
    assert found.result == "differs from step 6 on (weight: 2 of 10 leaves)"
    assert found.first_leaves == ["weights/dense.weight (3 ulp)"]
    assert (found.final_count, found.final_max_ulp) == (9, 40)


def test_of_many_ranks_two_records_are_left() -> None:
    leaf = Divergence("w", "weight", 3, 1e-7)
    ranks = [records.resume(rank=rank, restored=True) for rank in range(100)]
    for rank, step in ((70, 6), (40, 7), (80, 6)):
        ranks[rank] = replace(
            ranks[rank],
            identical=False,
            diverged_at=step,
            first=(leaf,),
            first_count=1,
            final_count=rank,
        )
    ranks[90] = replace(ranks[90], restored=False)
    first, for_all = sum_up_resumed(ranks)
    assert (first, for_all.rank, for_all.ranks) == (ranks[70], 0, 100)
    case = replace(CASE, world=100, launcher="mpirun")
    assert row([records.straight(ranks=100), for_all], case).status == "skipped", (
        "the line that says where is lost"
    )
    found = row([records.straight(ranks=100), first, for_all], case)
    assert (
        found.bitwise,
        found.diverged_at,
        found.diverged_rank,
        found.restored,
        found.final_count,
    ) == (False, 6, 70, False, 80)
    assert sum_up_resumed(ranks[:5]) == [replace(ranks[0], ranks=5)]


def test_a_rank_that_says_nothing_leaves_the_case_unmeasured() -> None:
    two = replace(CASE, world=2, launcher="mpirun")
    assert (
        row([records.straight(), records.straight(rank=1), records.resume()], two).status
        == "skipped"
    )
    both = [
        records.resume(),
        records.resume(rank=1),
        records.interrupt(),
        records.interrupt(rank=1),
    ]
    assert row([records.straight(), *both], two).status == "skipped", "of the straight run too"


def test_the_farthest_of_all_leaves_is_told_not_only_of_those_named() -> None:
    named = Divergence("steps", "optimizer", None, 4.0)
    found = records.resume(
        identical=False, diverged_at=4, first=(named,), first_count=9, first_max_ulp=2048
    )
    assert row([records.straight(), found]).first_max_ulp == 2048


def test_an_interrupted_run_that_went_another_way_is_told() -> None:
    other = records.interrupt(losses=(3.0, 2.9, 2.8, 2.75))
    assert row([records.straight(), records.interrupt(), records.resume()]).repeatable is True
    assert row([records.straight(), other, records.resume()]).repeatable is False


def test_what_differed_before_it_was_saved_is_not_the_checkpoints_doing() -> None:
    leaf = Divergence("w", "weight", 1, 1e-9)
    differed = records.resume(
        identical=False, diverged_at=4, first=(leaf,), first_count=1, first_roles=("weight",)
    )
    before = [records.straight(), records.interrupt()]
    assert row([*before, replace(differed, restored=True)]).result.startswith(
        "differed before it was saved"
    )
    assert row([*before, replace(differed, restored=False)]).result.startswith("not restored")
