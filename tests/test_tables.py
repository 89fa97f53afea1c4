"""Tables in every format, and the units in their cells."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from built_rows import FAILED, exactly, notes, row

from harness.analysis import statistics, summary, tables
from harness.analysis import text as words
from harness.analysis.statistics import Estimate, Samples
from harness.experiments.cost.rows import CostRow as Row
from harness.experiments.cost.sentences import compared_with_default


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
    assert cells(row(load_used_disturbed=1))["cold load"] == "250 ms~"
    assert cells(row(load_used_disturbed=1, load_cache="warm"))["cold load"] == "250 ms~ (warm)"
    told = "Then ~ stands behind their number, or behind the time of the load."
    assert told in notes(row(used_disturbed=1))
    assert told in notes(row(load_used_disturbed=1))
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
