"""Precision on demand: rows get more processes until they are precise or the time is over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import records
from conftest import Measure, planned

from harness.analysis import comparison_output, precision
from harness.analysis.runs import ReadRun, read_run
from harness.cli import measuring
from harness.cli.compare import compared
from harness.driver import machine
from harness.driver.session import Goal, Session
from harness.run import store
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase
from harness.wire.records import Record


def cost(item: PlannedCase, noise: Sequence[float]) -> list[Record]:
    """Saves of a process each, longer by its noise, and loads that are all alike."""
    found: list[Record] = []
    for process, factor in enumerate(noise):
        phases = dict.fromkeys(
            ("save_ns", "staged_ns", "finished_ns", "sync_ns"), int(1e8 * factor)
        )
        found += [
            records.save(item.case.id, process=process, index=index, **phases) for index in range(2)
        ]
        found += [records.load(item.case.id, process=process, index=index) for index in range(2)]
        found += [records.verified(item.case.id, process=process)]
    return found


@pytest.fixture
def run(tmp_path: Path) -> ReadRun:
    """A steady row, a restless one, and one that failed; 5 % was asked for."""
    plan = [planned(method, processes=4) for method in ("buffered", "npz", "direct")]
    found = [
        *cost(plan[0], (1.0, 1.001, 0.999, 1.0)),
        *cost(plan[1], (1.0, 1.5, 0.7, 1.2)),
        records.failure(plan[2].case.id),
    ]
    made = store.create(
        tmp_path,
        "test",
        [],
        plan,
        machine.capture(tmp_path),
        goal={"precision": 0.05, "budget_s": 90.0},
    )
    for record in found:
        made.append(record)
    return read_run(made.folder)


def test_rows_that_are_precise_or_failed_need_no_more(run: ReadRun) -> None:
    assert precision.too_wide(run, 0.05) == {run.stored.plan[1].case.id}
    assert precision.too_wide(run, 5.0) == set()


def test_the_least_precise_metric_decides(run: ReadRun) -> None:
    steady, restless = precision.of_run(run)
    assert steady.half_width < 0.05 < restless.half_width
    assert restless.metric in ("durable", "stall")


def test_one_process_is_never_precise(tmp_path: Path) -> None:
    plan = [planned()]
    made = store.create(tmp_path, "test", [], plan, machine.capture(tmp_path))
    for record in cost(plan[0], (1.0,)):
        made.append(record)
    assert precision.too_wide(read_run(made.folder), 1.0) == {plan[0].case.id}


def test_what_happened_is_said_for_every_row(run: ReadRun) -> None:
    reached, missed = precision.notes(run)
    assert reached == "±5 % was asked for and reached by raw buffered on resnet50 small on cpu."
    assert missed.startswith(
        "±5 % was asked for within 1.5 min and not reached by raw npz on resnet50 small on cpu ("
    )


def test_rows_of_several_worlds_have_names_of_their_own(tmp_path: Path) -> None:
    one = planned(processes=4)
    two = replace(one, case=replace(one.case, world=2, launcher="mpirun"))
    made = store.create(tmp_path, "test", [], [one, two], machine.capture(tmp_path))
    steady = (1.0, 1.01, 0.99, 1.0)
    of_rank_1 = [replace(record, rank=1) for record in cost(two, steady)]
    for record in [*cost(one, steady), *cost(two, steady), *of_rank_1]:
        made.append(record)
    found = precision.of_run(read_run(made.folder))
    names = [row.name.partition(" on resnet50")[0] for row in found]
    assert names == ["raw buffered", "raw buffered on 2 ranks"]


def test_two_arms_are_as_precise_as_their_ratio(tmp_path: Path) -> None:
    wild = (1.0, 1.5, 0.7, 1.2)
    item = planned(processes=4)
    plan = [replace(item, case=replace(item.case, arm=arm)) for arm in ("a", "b")]
    made = store.create(
        tmp_path,
        "test",
        [],
        plan,
        machine.capture(tmp_path),
        arms={arm: {"asked": ["."]} for arm in "ab"},
    )
    for record in [*cost(plan[0], wild), *cost(plan[1], wild)]:
        made.append(record)
    (row,) = precision.of_run(read_run(made.folder))
    assert row.half_width < 0.01
    assert row.cases == tuple(item.case.id for item in plan)


def test_a_comparison_says_which_of_its_rows_are_precise(tmp_path: Path) -> None:
    wild = (1.0, 1.5, 0.7, 1.2)
    plan = [planned(method, processes=4) for method in ("buffered", "npz")]
    plan = [replace(item, case=replace(item.case, arm=arm)) for item in plan for arm in ("a", "b")]
    noises = [wild, wild, wild, tuple(reversed(wild))]
    asked: dict[str, Any] = {
        "arms": {arm: {"asked": ["."]} for arm in "ab"},
        "goal": {"precision": 0.05, "budget_s": 90.0},
    }
    made = store.create(tmp_path, "test", [], plan, machine.capture(tmp_path), **asked)
    for item, noise in zip(plan, noises, strict=True):
        for record in cost(item, noise):
            made.append(record)
    found = compared(read_run(made.folder))
    reached, missed = found.remarks
    assert reached == "±5 % was asked for and reached by raw buffered on resnet50 small on cpu."
    assert "within 1.5 min and not reached by raw npz on resnet50 small on cpu (" in missed
    assert json.loads(comparison_output.to_json(found))["remarks"] == [reached, missed]
    assert reached in comparison_output.to_markdown(found)


@pytest.mark.slow
def test_processes_are_added_until_the_goal_is_reached(measure: Measure) -> None:
    plan = [planned("buffered", samples=1, warmups=0), planned("npz", samples=1, warmups=0)]
    asked: list[int] = []

    def too_wide() -> set[str]:
        asked.append(len(asked))
        return {plan[0].case.id} if len(asked) <= 2 else set()

    made = measure(plan, goal=Goal(too_wide, 600.0))
    processes = {
        item.case.method: {r.process for r in made.records("save") if r.case == item.case.id}
        for item in plan
    }
    assert processes == {"buffered": {0, 1, 2}, "npz": {0}}
    assert all(row.verified for row in made.rows)


def test_nothing_begins_when_the_time_is_over(measure: Measure) -> None:
    plan = [planned("buffered", samples=1, warmups=0)]
    made = measure(plan, goal=Goal(lambda: {plan[0].case.id}, 0.0))
    assert {record.process for record in made.records("save")} == {0}


@pytest.mark.parametrize(("budget_s", "expected"), [(500.0, [0]), (5000.0, [0, 1, 2])])
def test_nothing_begins_that_may_outlast_the_budget(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, budget_s: float, expected: list[int]
) -> None:
    slots: list[int] = []

    def slow(self: Session, units: object, slot: int, storage: object) -> float:
        slots.append(slot)
        return 1000.0

    monkeypatch.setattr(Session, "_measure_units", slow)
    plan = [planned("buffered", samples=1, warmups=0)]
    measure(plan, goal=Goal(lambda: {plan[0].case.id} if len(slots) < 3 else set(), budget_s))
    assert slots == expected


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), ("2min", 120.0)]
)
def test_budgets_have_units(text: str, seconds: float) -> None:
    assert measuring.goal_of(0.05, text) == {"precision": 0.05, "budget_s": seconds}


@pytest.mark.parametrize("text", ["10", "m", "-3m", "ten minutes"])
def test_a_budget_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(
        UsageError, match="^--budget is .* and must be a time above 0 with its unit"
    ):
        measuring.goal_of(0.05, text)


def test_a_budget_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="so give --precision too"):
        measuring.goal_of(None, "10m")
