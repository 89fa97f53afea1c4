"""The sentences below a table: what it means, and under which circumstances."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import records
import reported
from built_rows import FAILED, NOTHING, notes, row

from harness.analysis import summary
from harness.analysis.records import RunRecords
from harness.analysis.statistics import Estimate
from harness.cli.show import show
from harness.experiments.cost.rows import CostRow as Row
from harness.experiments.cost.sentences import compared_with_default
from harness.run import store

# What it means


def test_the_fastest_is_named_with_how_much_faster_than_the_default_it_is() -> None:
    found = [row("slow", (4.0, 4.1, 3.9, 4.0), default=True), row("fast", (1.0, 1.02, 0.98, 1.0))]
    text = summary.meaning(found)
    match = re.search(
        r"^fast makes a verified full checkpoint durable fastest, in 1.00 s\. "
        r"That is (.+) times \((.+) to (.+)\) as",
        text,
    )
    assert match, text
    value, low, high = (float(number) for number in match.groups())
    assert low <= value <= high
    assert value == pytest.approx(4.0, abs=0.1)


def test_the_default_may_be_the_fastest() -> None:
    text = summary.meaning([row("slow", (4.0, 4.1)), row("fast", (1.0, 1.0), default=True)])
    assert text.startswith(
        "fast makes a verified full checkpoint durable fastest, in 1.00 s, and it is the default. "
    )


def test_a_difference_within_the_interval_is_none() -> None:
    found = [row("slow", (1.0, 3.0, 1.1, 2.9), default=True), row("fast", (0.9, 3.0, 1.0, 2.8))]
    assert "fast makes" in summary.meaning(found)
    assert "Its time cannot be told from that of the default." in summary.meaning(found)


def test_without_a_default_nothing_is_compared_with_it() -> None:
    assert "default" not in summary.meaning([row("fast", (1.0,)), row("slow", (4.0,))])
    assert "default" not in summary.meaning([row("fast", (1.0,)), replace(FAILED, default=True)])


def test_a_method_that_covers_less_is_not_the_fastest_full_checkpoint() -> None:
    found = [row("partial", (0.1,), covers="weights"), row("whole", (1.0,))]
    assert summary.meaning(found).startswith(
        "whole makes a verified full checkpoint durable fastest"
    )
    assert summary.meaning(found[:1]).startswith(
        "partial makes a verified weights checkpoint durable fastest"
    )


def test_a_default_that_is_faster_because_it_covers_less_is_not_called_equal() -> None:
    found = [
        row("partial", (0.1, 0.11, 0.1), covers="weights", default=True),
        row("whole", (1.0, 1.1, 1.0)),
    ]
    text = summary.meaning(found)
    assert "cannot be told" not in text
    assert "Only the default, partial, is faster, and it covers less (weights)." in text


def test_a_method_that_is_not_verified_is_never_named() -> None:
    found = [row("wrong", (0.1,), stall=0.0, verified=False), row("right", (1.0,))]
    assert "wrong" not in summary.meaning(found)


def test_the_least_stall_may_be_anothers() -> None:
    found = [row("fast", (1.0,), stall=0.9), row("asynchronous", (2.0,), stall=0.01)]
    assert (
        "Training stands still least with asynchronous: 10.0 ms a checkpoint."
        in summary.meaning(found)
    )


def test_methods_that_never_flush_are_named() -> None:
    never = {"durability": "never", "data_durability": "never"}
    text = summary.meaning([row("a", **never), row("b", **never), row("c", **never), row("d")])
    assert (
        "After a power loss nothing that a, b and c wrote is certain, "
        "because not all of it is flushed." in text
    )


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (["a"], "a flushes the data but not every file name."),
        (["a", "b"], "a and b flush the data but"),
    ],
)
def test_methods_that_flush_data_but_not_names_are_told_apart(
    methods: list[str], said: str
) -> None:
    text = summary.meaning(
        [row(method, durability="never", data_durability="at return") for method in methods]
    )
    assert said in text
    assert "nothing that" not in text


@pytest.mark.parametrize("durability", ["at return", "at finished", "unknown"])
def test_nothing_is_said_of_what_is_safe_or_unknown(durability: str) -> None:
    text = summary.meaning([row(durability=durability, data_durability=durability)])
    assert "power loss" not in text
    assert "flush" not in text


def test_failed_methods_are_named_beside_the_good_ones() -> None:
    assert summary.meaning([row(), FAILED]).endswith("bad failed: see the reasons below.")


@pytest.mark.parametrize("found", [[FAILED], [row(verified=False)]], ids=["failed", "not verified"])
def test_without_a_verified_checkpoint_there_is_no_winner(found: list[Row]) -> None:
    assert summary.meaning(found) == ("No method gave a verified checkpoint without a mark here.")


def test_a_comparison_is_wider_among_more_methods() -> None:
    generator = np.random.default_rng(1)
    default, other, third = (
        row(str(i), tuple(1 + 0.1 * generator.random(8)), default=i == 0) for i in range(3)
    )
    alone = compared_with_default(other, [default, other])
    among = compared_with_default(other, [default, other, *[third] * 10])
    assert alone is not None
    assert among is not None
    assert among.high - among.low > alone.high - alone.low


def test_a_default_of_another_framework_is_not_compared_with() -> None:
    found = [row("one"), row("two", framework="jax", default=True)]
    assert compared_with_default(found[0], found) is None
    assert compared_with_default(found[1], found) is None, "nor the default with itself"


# Several frameworks


def both(**changes: Any) -> list[Row]:
    """The same two methods in two frameworks, the second one's faster."""
    slow = [row("save", (4.0, 4.1), default=True), row("deepfreeze", (3.0, 3.1))]
    fast = [
        replace(one, framework="jax")
        for one in (row("save", (2.0, 2.1), default=True), row("deepfreeze", (0.1, 0.11), 0.01))
    ]
    return [replace(one, **changes) for one in (*slow, *fast)]


def test_of_several_frameworks_every_method_is_named_with_its_own() -> None:
    text = summary.meaning(both())
    assert text.startswith(
        "jax deepfreeze makes a verified full checkpoint durable fastest, in 105 ms. "
    )
    assert (
        "as fast as jax's default. Training stands still least with jax deepfreeze: 10.0 ms" in text
    )
    never = summary.meaning(both(durability="never", data_durability="never"))
    assert (
        "nothing that raw save, raw deepfreeze, jax save and jax deepfreeze wrote is certain"
        in never
    )
    names = summary.meaning(both(durability="never", data_durability="at return"))
    assert "raw save, raw deepfreeze, jax save and jax deepfreeze flush the data" in names
    failed = summary.meaning([*both(), replace(FAILED, framework="jax")])
    assert failed.endswith("jax bad failed: see the reasons below.")


def test_the_default_of_several_is_named_as_its_frameworks() -> None:
    found = both()
    assert "in 2.05 s, and it is jax's default." in summary.meaning([found[0], found[2]])
    found = [
        row("partial", (0.1, 0.11, 0.1), covers="weights", default=True),
        row("whole", (1.0, 1.1, 1.0)),
    ]
    said = summary.meaning([*found, row("slow", (9.0, 9.1), framework="jax")])
    assert "Only raw's default, partial, is faster, and it covers less (weights)." in said


def test_one_good_framework_is_named_too_where_the_table_has_another() -> None:
    assert summary.meaning([row(), replace(FAILED, framework="jax")]).startswith(
        "raw one makes a verified"
    )


def test_whose_ceiling_is_in_doubt_is_said() -> None:
    assert "* raw save, raw deepfreeze, jax save and" in notes(
        *both(write_efficiency=Estimate(1.2, 1.1, 1.3))
    )


def test_a_reason_is_said_of_a_framework_where_a_table_has_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = [reported.item("buffered", framework=framework) for framework in ("raw", "jax")]
    found = [records.failure(item.case.id, reason=f"{item.case.framework} broke") for item in plan]
    show(store.Run(reported.store_run(tmp_path, plan, found)), "table")
    said = capsys.readouterr().out
    assert "raw buffered: failed in save: raw broke" in said
    assert "jax buffered: failed in save: jax broke" in said


def test_the_samples_and_the_disturbed_ones_are_counted() -> None:
    said = notes(row("a", disturbed=2), row("b", (1.0,), disturbed=1), FAILED)
    assert (
        "Medians of 4 saves, up to 2 processes a method, "
        "95 % bootstrap intervals clustered by process" in said
    )
    assert (
        "3 samples stood between ceilings that differed by more than 10 %, "
        "or on a disk that was busy with others, and were tagged disturbed." in said
    )


def test_good_circumstances_need_no_warning() -> None:
    assert len(summary.notes([row()], NOTHING)) == 1
    assert summary.notes([FAILED], NOTHING) == []


def test_ceilings_through_the_page_cache_are_named() -> None:
    assert "takes no direct I/O. The ceilings went through the page cache" in notes(
        row("a"), row("b", ceiling_direct=False)
    )
    assert "direct I/O" not in notes(row("a"), FAILED)


@pytest.mark.parametrize(
    ("backing", "said"), [("unknown", True), ("backed", False), ("physical", False)]
)
def test_memory_that_may_not_have_been_backed_is_named(backing: str, said: bool) -> None:
    assert ("Memory backing could not be shown" in notes(row(backing=backing))) is said


def test_methods_that_beat_their_ceiling_are_named() -> None:
    above = Estimate(1.2, 1.1, 1.3)
    said = notes(row("a", write_efficiency=above), row("b"), row("c", write_efficiency=above))
    assert "* a and c beat the ceiling beyond the interval" in said


def test_the_harness_says_what_it_costs_itself() -> None:
    overhead = [record for record in records.one_of_each() if record.kind == "overhead"]
    said = notes(
        row(),
        records_=RunRecords(
            [replace(overhead[0], empty_save_ns=(9_000, 1_000, 2_000)), *overhead[1:]], {}
        ),
    )
    assert "The harness itself takes 2.0 us a save and 90 MiB of memory." in said
