"""Correctness: what always counts as worse, without an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import records
from compared_runs import Make, changed, compared, cost, item, maker, without

from harness.analysis import comparison
from harness.run.plan import PlannedCase
from harness.wire.records import Record


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path / "results")


def faults(
    make: Make, head: Sequence[Record], head_plan: Sequence[PlannedCase] | None = None
) -> str:
    """Return the faults of a head against a sound base."""
    plan = [item()]
    found = comparison.of_runs(make(plan, cost(plan[0])), make(head_plan or plan, head))
    assert found.regressed == bool(found.rows[0].faults)
    return "; ".join(found.rows[0].faults)


# --- failures


def test_a_row_that_fails_now_counts(make: Make) -> None:
    failure = records.failure(item().case.id, phase="verify", reason="Mismatch: 1 of 9 leaves")
    assert faults(make, [*cost(item()), failure]) == "failed in verify: Mismatch: 1 of 9 leaves"


def test_a_row_that_does_not_fail_any_more_is_a_gain(make: Make) -> None:
    plan = [item()]
    failed = [*cost(plan[0]), records.failure(plan[0].case.id)]
    found = compared(make, failed, cost(plan[0]), plan)
    assert found.rows[0].gains == ("was failed and is measured now",)


@pytest.mark.parametrize(
    ("race", "reason", "counts"),
    [(True, "OSError: torn", False), (False, "OSError: torn", True), (True, "Typo", True)],
)
def test_a_row_that_fails_by_a_declared_race_does_not_count(
    make: Make, race: bool, reason: str, counts: bool
) -> None:
    plan = [replace(item(), race=race, expected_failure="torn")]
    sound = cost(plan[0])
    failed = [*sound, records.failure(plan[0].case.id, reason=reason)]
    for base, head in ((sound, failed), (failed, sound)):
        found = compared(make, base, head, plan)
        remark = (
            "raw buffered: fails now and then by a race in its framework, so it is not compared"
        )
        assert (remark in found.remarks) != counts
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
    sides = []
    for reason in (before, now):
        sides.append([*cost(plan[0]), records.failure(plan[0].case.id, reason=reason)])
    assert compared(make, *sides, plan).regressed is counts


# --- durability


def test_a_lost_flush_counts(make: Make) -> None:
    head = changed(cost(item()), "syscalls", durability="never")
    assert faults(make, head) == "safety after a power loss was 'at return' and is 'never'"


def test_a_lost_trace_does_not_count_and_is_said(make: Make) -> None:
    plan = [item()]
    base = cost(plan[0])
    unknown = {"durability": "unknown", "data_durability": "unknown", "reason": "no strace here"}
    remark = "raw buffered: what survives a power loss is not known any more"
    for head, reason in (
        (changed(base, "syscalls", **unknown), " (no strace here)"),
        (without(base, "syscalls"), ""),
    ):
        found = compared(make, base, head, plan)
        assert not found.regressed
        assert list(found.remarks) == [f"{remark}{reason}"]
        assert not compared(make, head, base, plan).remarks


# --- coverage and bytes


def test_lost_coverage_counts_and_stays_the_same_row(make: Make) -> None:
    less = item(covers="weights")
    assert faults(make, cost(less), [less]) == "coverage was 'full' and is 'weights'"


def test_the_values_of_single_ranks_that_are_not_covered_any_more_count(make: Make) -> None:
    runs = []
    for covers in (True, False):
        plan = [item(world=2, rank_local=covers)]
        of_rank_0 = cost(plan[0])
        of_rank_1 = [replace(record, rank=1) for record in without(of_rank_0, "syscalls")]
        runs.append(make(plan, [*of_rank_0, *of_rank_1]))
    every, one = runs
    assert comparison.of_runs(every, one).rows[0].faults == (
        "covered every rank's own values and covers one rank's alone now",
    )
    assert comparison.of_runs(one, every).rows[0].gains == ("covers every rank's own values now",)


@pytest.mark.parametrize(
    ("file_bytes", "faults", "gains"),
    [
        (100_000, (), ()),
        (100_100, (), ()),
        (100_101, ("files had 100000 bytes and have 100101 (+0.10 %)",), ()),
        (99_000, (), ("files had 100000 bytes and have 99000 (-1.00 %)",)),
    ],
)
def test_files_may_grow_by_a_thousandth(
    make: Make, file_bytes: int, faults: tuple[str, ...], gains: tuple[str, ...]
) -> None:
    plan = [item()]
    base = cost(plan[0], file_bytes=100_000)
    head = cost(plan[0], file_bytes=file_bytes)
    (row,) = compared(make, base, head, plan).rows
    assert (row.faults, row.gains) == (faults, gains)


# --- resumed runs


def test_a_resume_that_is_not_bitwise_any_more_counts(make: Make) -> None:
    plan = [replace(item(experiment="resume"), processes=1)]
    case = plan[0].case.id
    before = [records.straight(case), records.interrupt(case)]
    same = [*before, records.resume(case)]
    differs = {"identical": False, "diverged_at": 5, "first_count": 1, "final_count": 1}
    other = [*before, records.resume(case, **differs)]
    assert compared(make, same, other, plan).rows[0].faults == ("was bitwise and is not any more",)
    assert compared(make, other, same, plan).rows[0].gains == ("is bitwise now",)


def test_a_resume_that_does_not_get_back_what_was_saved_any_more_counts(make: Make) -> None:
    plan = [replace(item(experiment="resume"), processes=1)]
    case = plan[0].case.id
    before = [records.straight(case), records.interrupt(case)]
    differs = {"identical": False, "first_count": 1, "final_count": 1}
    later = records.resume(case, **differs, diverged_at=5, restored=True)
    at_once = records.resume(case, **differs, diverged_at=4, restored=False)
    # Neither is bitwise.
    found = compared(make, [*before, later], [*before, at_once], plan)
    assert found.rows[0].faults == ("was restored and is not any more",)
