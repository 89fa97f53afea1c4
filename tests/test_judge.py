"""The judge tells whether a run went as expected, and how long it will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from conftest import planned

from harness.driver import judge
from harness.run.plan import PlannedCase


@dataclass(frozen=True)
class Row:
    status: str
    reason: str = ""


def verdict(expected_failures: Sequence[str | None], outcomes: Sequence[Row]) -> int:
    return judge.exit_code(
        [planned(expected_failure=pattern) for pattern in expected_failures], outcomes
    )


@pytest.mark.parametrize(
    ("status", "code"), [("ok", 0), ("unsupported", 0), ("failed", 1), ("skipped", 1)]
)
def test_a_row_is_expected_to_be_ok_or_unsupported(status: str, code: int) -> None:
    assert verdict([None], [Row(status, "why")]) == code


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (Row("failed", "Mismatch: 3 of 9 leaves differ"), 0),
        (Row("failed", "OSError: disk full"), 1),
        (Row("ok"), 1),
        (Row("skipped", "3 of 9 leaves differ"), 1),
        (Row("unsupported", "no bfloat16"), 0),
    ],
    ids=["with that reason", "with another", "it works now", "interrupted", "not to be had here"],
)
def test_a_method_that_its_framework_breaks_must_fail_for_the_declared_reason(
    row: Row, code: int
) -> None:
    assert verdict([r"\d+ of \d+ leaves differ"], [row]) == code


def test_one_row_that_is_not_as_expected_is_enough() -> None:
    assert verdict([None, "broken", None], [Row("ok"), Row("failed", "is broken"), Row("ok")]) == 0
    assert (
        verdict([None, "broken", None], [Row("ok"), Row("failed", "is broken"), Row("failed")]) == 1
    )
    assert (
        verdict([None, "broken", None], [Row("failed", "is broken"), Row("ok"), Row("ok")]) == 1
    ), "in the plan's order"


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [("failed", "ok", 0), ("ok", "failed", 1), ("failed", "failed", 1), ("ok", "ok", 0)],
)
def test_of_two_arms_the_head_is_judged(a: str, b: str, code: int) -> None:
    plan = [planned(), planned()]
    plan = [
        replace(item, case=replace(item.case, arm=arm))
        for item, arm in zip(plan, "ab", strict=True)
    ]
    assert judge.exit_code(plan, [Row(a), Row(b)]) == code


def test_nothing_planned_is_as_expected() -> None:
    assert verdict([], []) == 0


def test_a_row_for_every_case_is_wanted() -> None:
    with pytest.raises(ValueError, match="zip"):
        verdict([None, None], [Row("ok")])


def test_an_estimate_grows_with_samples_processes_and_bytes() -> None:
    base = judge.estimated_s([planned()])
    assert base > 0
    assert judge.estimated_s([planned(samples=20)]) > base
    assert judge.estimated_s([planned(processes=2)]) > base
    assert judge.estimated_s([planned(preset="full")]) > base + 1
    assert judge.estimated_s([planned(), planned("direct")]) > base
    assert judge.estimated_s([planned(), planned("direct", own_process=True)]) > judge.estimated_s(
        [planned(), planned("direct")]
    )
    assert judge.estimated_s([]) == 0


def test_an_estimate_counts_the_jobs_of_each_case() -> None:
    """A restart after each of six kills is longer than two jobs, each with one to compare with."""
    item = planned(world=4, launcher="mpirun")
    restart, shrink, spare = (
        judge.estimated_s([replaced(item, experiment="recovery", settings={"way": way})])
        for way in ("restart", "shrink", "peer-spare")
    )
    assert restart > shrink + 4
    assert shrink > spare


def test_an_estimate_counts_kills_instants_and_disks() -> None:
    def estimated_s(kills: int, instants: int, file_systems: str) -> float:
        settings = {"kills": kills, "instants": instants, "file_systems": file_systems}
        return judge.estimated_s([replaced(planned(), experiment="faults", settings=settings)])

    base_s = estimated_s(0, 0, "none")
    assert estimated_s(8, 0, "none") > base_s + 4
    assert estimated_s(0, 60, "none") > base_s + 3
    assert estimated_s(0, 0, "all") > estimated_s(0, 0, "ext4") > base_s
    # No method has so many instants.
    assert estimated_s(0, 1_000_000, "none") == estimated_s(0, 1_000, "none")


def replaced(item: PlannedCase, **changes: object) -> PlannedCase:
    return replace(item, case=replace(item.case, **changes))


def test_an_estimate_counts_the_steps_of_training() -> None:
    def training(every: int) -> PlannedCase:
        item = planned(preset="full")
        return replace(item, case=replace(item.case, experiment="train", every=every))

    assert judge.estimated_s([training(4)]) > judge.estimated_s([training(1)]) + 1
