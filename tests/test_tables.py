"""Tables in every format, and the sentences that say what they mean."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import records
import reported

from harness.analysis import statistics, summary, tables
from harness.analysis import text as words
from harness.analysis.records import RunRecords
from harness.analysis.statistics import Estimate, Samples
from harness.cli.show import show
from harness.experiments.cost.rows import CostRow as Row
from harness.experiments.cost.sentences import compared_with_default
from harness.run import store


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def row(
    method: str = "one",
    durable: tuple[float, ...] = (1.0, 1.1, 0.9),
    stall: float = 0.5,
    **changes: Any,
) -> Row:
    """A good row with these durable times, from two processes."""
    samples = Samples(np.array(durable), np.arange(len(durable)) % 2)
    found = Row(
        framework="raw",
        method=method,
        workload="resnet50",
        preset="small",
        precision="float32",
        device="cpu",
        world=1,
        strategy="",
        load_world=0,
        every=0,
        ablated="",
        scale=0,
        experiment="cost",
        default=False,
        covers="full",
        samples=len(durable),
        processes=2,
        state_bytes=1000,
        file_bytes=1100,
        load_cache="cold",
        backing="backed",
        ceiling_direct=True,
        durability="at return",
        data_durability="at return",
        verified=True,
        stall_s=exactly(stall),
        durable_s=statistics.median(samples),
        load_s=exactly(0.25),
        write_efficiency=Estimate(0.5, 0.45, 0.55),
        durable_samples=samples,
    )
    return replace(found, **changes)


FAILED = row(
    "bad",
    status="failed",
    phase="verify",
    reason="wrong",
    verified=False,
    stall_s=None,
    durable_s=None,
    load_s=None,
)
FAILED = replace(FAILED, durable_samples=None, write_efficiency=None, samples=0, processes=0)


def cells(found: Row, *others: Row) -> dict[str, str]:
    return tables.table([found, *others]).iloc[0].to_dict()


# Units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000_000_5, "0.000500 ms"),
        (0.001234, "1.23 ms"),
        (0.0123, "12.3 ms"),
        (0.5, "500 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.0, "1.00 s"),
        (12.34, "12.3 s"),
        (99.96, "100 s"),
        (123.4, "123 s"),
        (1234.5, "1234 s"),
        (98765.4, "98765 s"),
    ],
)
def test_a_duration_has_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert words.duration(exactly(seconds)) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (204_500_000, "204 MB"),
        (999_999_999, "1 GB"),
        (2_930_000_000, "2.93 GB"),
        (1_500_000_000_000, "1500 GB"),
    ],
)
def test_a_size_has_three_digits_and_a_decimal_unit(count: int, text: str) -> None:
    assert words.size(count) == text


def test_a_share_comes_with_its_interval() -> None:
    assert words.share(Estimate(0.512, 0.4, 0.6)) == "0.51 [0.40–0.60]"


@pytest.mark.parametrize("text", [words.duration, words.share])
def test_what_was_not_measured_is_a_dash(text: Any) -> None:
    assert text(None) == "–"


# The table


def test_a_line_says_what_a_reader_chooses_by() -> None:
    assert cells(row(durable=(1.0,), default=True)) == {
        "method": "one (default)",
        "stall": "500 ms",
        "durable": "1.00 s",
        "share of ceiling": "0.50 [0.45–0.55]",
        "n": "1",
        "cold load": "250 ms",
        "save memory": "–",
        "growth": "–",
        "load memory": "–",
        "bytes": "1.100",
        "covers": "full",
        "power-safe": "at return",
        "verified": "yes",
    }


def test_how_long_opening_took_is_a_column_where_the_run_says_so() -> None:
    assert cells(row(open_s=exactly(0.02)))["open"] == "20.0 ms"
    assert cells(row(open_s=exactly(0.02)), FAILED)["open"] == "20.0 ms"
    assert cells(FAILED, row(open_s=exactly(0.02)))["open"] == "–"
    assert "open" not in cells(row(), FAILED)


def test_disturbed_samples_that_count_are_told() -> None:
    assert cells(row(durable=(1.0, 1.1, 1.2, 1.3), used_disturbed=3))["n"] == "4 (3~)"
    assert "They count (~ behind their number) where a row has too few others." in notes(
        row(used_disturbed=1)
    )
    assert "~" not in notes(row(disturbed=1))


def test_a_load_that_was_not_cold_says_so() -> None:
    assert cells(row(load_cache="warm"))["cold load"] == "250 ms (warm)"
    assert cells(row(load_cache="mixed"))["cold load"] == "250 ms (mixed)"


def test_a_share_above_the_ceiling_is_marked() -> None:
    assert (
        cells(row(write_efficiency=Estimate(1.2, 1.1, 1.3)))["share of ceiling"]
        == "1.20 [1.10–1.30]*"
    )
    assert not cells(row(write_efficiency=Estimate(1.2, 0.9, 1.3)))["share of ceiling"].endswith(
        "*"
    )


def test_a_line_without_numbers_has_dashes_and_its_status() -> None:
    line = cells(replace(FAILED, state_bytes=None, file_bytes=None))
    assert [
        line[name] for name in ("stall", "durable", "share of ceiling", "cold load", "bytes")
    ] == ["–"] * 5
    assert line["verified"] == "failed"


def test_a_good_row_that_is_not_verified_yet_says_so() -> None:
    assert cells(row(verified=False))["verified"] == "not yet"


def test_the_framework_is_named_where_there_are_several() -> None:
    assert cells(row("one"), row("two"))["method"] == "one"
    assert cells(row("one"), row("two", framework="jax"))["method"] == "raw one"


def test_rows_of_one_state_stand_together_under_its_title() -> None:
    found = [
        row("a"),
        row("b", precision="bf16-mixed", device="cuda", world=4, state_bytes=2_000_000),
        row("c", state_bytes=1500),
        replace(FAILED, workload="candle-mlp", state_bytes=None),
    ]
    groups = tables.by_workload(found)
    assert {title: [member.method for member in members] for title, members in groups.items()} == {
        "resnet50 small on cpu: 1.5 kB of state": ["a", "c"],
        "resnet50 small, bf16-mixed on cuda, 4 ranks: 2 MB of state": ["b"],
        "candle-mlp small on cpu": ["bad"],
    }


# Other formats


def test_markdown_keeps_a_bar_in_a_name_within_its_cell() -> None:
    text = tables.to_markdown([row("a|b"), row("c", workload="candle-mlp")])
    blocks = text.strip().split("\n\n")
    assert [block for block in blocks if block.startswith("**")] == [
        "**resnet50 small on cpu: 1 kB of state**",
        "**candle-mlp small on cpu: 1 kB of state**",
    ]
    lines = blocks[1].splitlines()
    assert len(lines) == 3
    columns = [len(re.split(r"(?<!\\)\|", line)) for line in lines]
    assert len(set(columns)) == 1
    assert lines[0].startswith("| method | covers | stall | durable |")
    assert lines[2].startswith("| a\\|b | full | 500 ms | 1.00 s |")


AWKWARD = 'said "no", then\nstopped; 100 % ä'


def test_csv_parses_back() -> None:
    found = [row("a,b"), replace(FAILED, reason=AWKWARD)]
    read = list(csv.DictReader(io.StringIO(tables.to_csv(found))))
    assert [line["method"] for line in read] == ["a,b", "bad"]
    assert read[1]["reason"] == AWKWARD
    assert float(read[0]["durable_s"]) == pytest.approx(1.0)
    assert float(read[0]["durable_s_low"]) <= 1.0 <= float(read[0]["durable_s_high"])
    assert read[1]["durable_s"] == ""
    assert set(read[0]) == set(found[0].to_json())


def test_json_is_an_object_a_row() -> None:
    found = [row("a"), replace(FAILED, reason=AWKWARD)]
    read = json.loads(tables.to_json(found))
    assert read == [one.to_json() for one in found]
    assert (read[0]["durable_s"], read[1]["durable_s"], read[1]["reason"]) == (
        pytest.approx(1.0),
        None,
        AWKWARD,
    )


def single(value: float) -> Estimate:
    return statistics.median(Samples(np.array([value]), np.array([0])))


def test_a_single_sample_is_shown_and_stored_without_an_interval() -> None:
    found = row(durable=(1.0,), write_efficiency=single(0.01))
    assert cells(found)["share of ceiling"] == "0.01 [–]"
    assert words.spread_duration(single(0.01)) == "10 ms [–]"
    fields = json.loads(tables.to_json([found]))[0]
    assert [fields[f"write_efficiency{end}"] for end in ("", "_low", "_high")] == [0.01, None, None]


def test_a_single_sample_above_the_ceiling_puts_nothing_in_doubt() -> None:
    assert not row(write_efficiency=single(1.3)).above_ceiling
    assert row(write_efficiency=Estimate(1.3, 1.1, 1.5)).above_ceiling


@pytest.mark.parametrize(("default", "other"), [((4.0,), (1.0, 1.1)), ((4.0, 4.1), (1.0,))])
def test_a_single_sample_is_not_held_against_the_default(
    default: tuple[float, ...], other: tuple[float, ...]
) -> None:
    found = [row("slow", default, default=True), row("fast", other)]
    assert compared_with_default(found[1], found) is None
    assert re.match(
        r"fast makes a verified full checkpoint durable fastest, in 1.0\d s\. ",
        summary.meaning(found),
    )


def test_no_rows_are_an_empty_list() -> None:
    assert json.loads(tables.to_json([])) == []
    assert tables.to_markdown([]).strip() == ""


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
    assert summary.meaning(found) == "No method gave a verified checkpoint here."


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


# Circumstances


NOTHING = RunRecords([], {})


def notes(*found: Row, records_: RunRecords = NOTHING) -> str:
    return "\n".join(summary.notes(found, records_))


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
