"""Rows of several worlds in one table: who is held against whom, and what is said of it."""

from __future__ import annotations

import pytest
from built_rows import FAILED, row

from harness.analysis import summary, tables
from harness.experiments.cost.scaling import add_slowdowns, is_scaling, series


def test_rows_of_one_world_are_no_scaling() -> None:
    assert not is_scaling([row("a", world=2), row("b", world=2)])
    assert is_scaling([row("a"), row("a", world=2)])


def test_each_world_is_held_against_one_rank() -> None:
    found = series(
        [
            row("a"),
            row("b"),
            row("a", world=2, durable=(2.0, 2.2, 1.8)),
            row("a", world=4, durable=(3.0, 3.3, 2.7)),
        ]
    )
    assert [[(member.row.method, member.row.world) for member in members] for members in found] == [
        [("a", 1), ("a", 2), ("a", 4)],
        [("b", 1)],
    ]
    slowdowns = [member.slowdown for member in found[0]]
    assert slowdowns[0] is None
    assert [round(slowdown.value, 6) for slowdown in slowdowns if slowdown] == [2.0, 3.0]
    assert all(
        slowdown.low <= slowdown.value <= slowdown.high for slowdown in slowdowns if slowdown
    )
    assert found[1][0].slowdown is None


def test_one_rank_begins_the_series_of_every_strategy() -> None:
    found = series([row("a"), row("a", world=2, strategy="x"), row("a", world=2, strategy="y")])
    assert [
        [(member.row.world, member.row.strategy) for member in members] for members in found
    ] == [
        [(1, ""), (2, "x")],
        [(1, ""), (2, "y")],
    ]


def test_a_state_that_grows_is_judged_for_each_byte() -> None:
    alone, two = (
        row("a", scale=1),
        row("a", world=2, scale=2, state_bytes=2000, durable=(3.0, 3.3, 2.7)),
    )
    slowdown = series([alone, two])[0][1].slowdown
    assert slowdown is not None
    assert slowdown.value == pytest.approx(1.5)
    assert "to one rank's" in tables.table([alone, two]).columns


def test_a_failed_row_stands_in_its_series_without_a_number() -> None:
    broken = [
        row("bad"),
        row("bad", world=2, status="failed", durable_samples=None, durable_s=None),
    ]
    lines = tables.table([*broken, FAILED, row("other", world=4)])
    assert list(lines["to one rank's"]) == ["–", "–", "–", "–"]


def test_the_table_marks_more_ranks_than_processors_and_the_title_names_all_worlds() -> None:
    rows = [
        row("a", oversubscribed=False),
        row("a", world=4, oversubscribed=True, straggler=1.25, writers=4),
    ]
    (title, members), *others = tables.by_workload(rows).items()
    assert not others
    assert title == "resnet50 small on cpu, 1 and 4 ranks: 1 kB of state"
    lines = tables.table(members)
    assert list(lines["ranks"]) == ["1", "4 +"]
    assert list(lines["last / median rank"]) == ["–", "1.25"]
    assert list(lines["writers"]) == ["–", "4 of 4"]


def test_the_sentences_name_the_fastest_of_the_largest_world_and_every_slowdown() -> None:
    rows = [
        row("slow", durable=(1.0, 1.1, 0.9)),
        row("shared", durable=(2.0, 2.2, 1.8)),
        row("slow", world=4, durable=(4.0, 4.4, 3.6), oversubscribed=True),
        row("shared", world=4, durable=(2.2, 2.4, 2.0), oversubscribed=True),
    ]
    add_slowdowns(rows)
    said = summary.meaning(rows)
    assert "On 4 ranks shared is durable first, in 2.20 s." in said
    assert "shared 1.1; slow 4.0" in said
    assert "oversubscribed" in said


def test_no_figure_is_told_of_worlds_that_failed() -> None:
    rows = [
        row("a"),
        row("a", world=2, status="failed", durable_samples=None, durable_s=None, verified=False),
    ]
    assert summary.meaning(rows) == (
        "No method gave a verified checkpoint in several worlds. a failed: see the reasons below."
    )
