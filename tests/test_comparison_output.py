"""Comparisons as Markdown, JUnit, JSON, and the commands that print them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from compared_runs import Make, calibration, cost, item, maker
from conftest import ROOT
from stubs import command

from harness.analysis import comparison_output
from harness.analysis.comparison import ComparedRow, Comparison, Metric, sides
from harness.analysis.statistics import Estimate
from harness.wire.case import OwnModel

NASTY = 'a|b <script>alert("x")</script> \x1b[31mred\x00 & ]]>'


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path / "results")


def nasty() -> Comparison:
    """Return a comparison whose words break tables and pages."""
    slower = Metric("durable", "ceilings", 1.0, 1.2, Estimate(1.2, 1.1, 1.3), "slower", drift=0.1)
    unknown = Metric("stall", "s", 0.1, 0.1, Estimate(1.0, 0.0, float("inf")), "inconclusive")
    row = ComparedRow(
        group="group <1>",
        name="raw x",
        cases=("0" * 12,),
        metrics=(slower, unknown),
        faults=(NASTY,),
        gains=(),
        left_out={"load": NASTY},
    )
    return Comparison(
        base="base", head="head", paired=False, tests=2, rows=(row,), remarks=("a remark",)
    )


def test_a_row_has_a_line_for_each_metric_loss_and_gain() -> None:
    lines = comparison_output.lines(nasty().rows[0])
    assert [line[1:4] for line in lines] == [
        ("durable, ceilings", "1.000", "1.200"),
        ("stall", "100 ms", "100 ms"),
        ("load", "", ""),
        ("correctness", "", ""),
    ]
    assert [line[5] for line in lines] == ["slower", "inconclusive", "not compared", "worse"]
    assert [line[4] for line in lines[:2]] == ["1.200 [1.100–1.300]", "1.000 [0.000–∞]"]
    assert comparison_output.ratio(Estimate(2.0, 0.5, 150.4)) == "2.000 [0.500–150]"


def test_junit_is_valid_xml_whatever_a_record_says() -> None:
    root = ElementTree.fromstring(comparison_output.to_junit(nasty()))
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("4", "2", "2")
    messages = [failure.get("message") for failure in root.iter("failure")]
    assert messages[0] == NASTY.replace("\x1b[31m", "").replace("\x00", "\ufffd")
    assert messages[1] == "slower: 1.200 [1.100–1.300]"


def test_markdown_keeps_its_table_whatever_a_record_says() -> None:
    text = comparison_output.to_markdown(nasty())
    assert text.startswith(
        "### 1 of 1 rows got worse: head against base. "
        "Metrics: 1 slower, 1 inconclusive, 1 not compared.\n"
        "- a remark\n\n**group \\<1\\>**\n\n| row |"
    )
    assert "<script>" not in text
    assert "| **slower** |" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {7}


def test_rows_without_metrics_say_what_was_compared() -> None:
    row = ComparedRow("faults", "raw direct", ("a", "b"), (), (), (), {})
    text = comparison_output.to_markdown(Comparison("base", "head", True, 0, (row, row), ()))
    assert text.startswith(
        "### Nothing got worse: head against base. "
        "No metrics, but the verdicts and other facts of 2 rows.\n"
    )
    assert text.endswith("These have no intervals.\n")


def test_json_has_no_infinity() -> None:
    found = json.loads(
        comparison_output.to_json(nasty()), parse_constant=lambda name: pytest.fail(name)
    )
    (row,) = found["rows"]
    assert [metric["ratio_high"] for metric in row["figures"]] == [1.3, None]
    assert [metric["drift"] for metric in row["figures"]] == [0.1, 0.0]
    assert (found["schema"], found["regressed"], row["faults"]) == (1, True, [NASTY])
    assert row["left_out"] == {"load": NASTY}


def test_the_command_exits_with_what_it_found(make: Make, tmp_path: Path) -> None:
    plan = [item()]
    base = make(plan, cost(plan[0]))
    slow = make(plan, cost(plan[0], 1.3))
    elsewhere = make(plan, cost(plan[0]), machine="elsewhere")
    results = ("--results", str(tmp_path / "results"))
    out = tmp_path / "out"
    worse = command("compare", base.name, slow.name, "--out", str(out), *results)
    assert worse.status == 1, worse.errors
    written = sorted(path.name for path in out.iterdir())
    assert written == ["comparison.json", "comparison.md", "comparison.xml"]
    same = command("compare", base.name, base.name, "--format", "json", *results)
    assert same.status == 0, same.errors
    assert json.loads(same.output)["regressed"] is False
    refused = command("compare", base.name, elsewhere.name, *results)
    assert refused.status == 3
    assert "not measured alike (machine)" in refused.errors


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_regression_is_one_whoever_has_read_enough(make: Make, tmp_path: Path, form: str) -> None:
    """As in `ckptbench compare BASE HEAD | head -1` with pipefail."""
    plan = [item()]
    base, slow = make(plan, cost(plan[0])), make(plan, cost(plan[0], 1.3))
    results = ("--results", str(tmp_path / "results"), "--format", form)
    argv = [sys.executable, "-c", "from harness.cli import main; main()"]
    argv += ["compare", base.name, slow.name, *results]
    reader, writer = os.pipe()
    os.close(reader)
    # Without a buffer, Python would have nothing left to write at the end.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open(writer, "wb") as nobody_reads:
        done = subprocess.run(argv, cwd=ROOT, stdout=nobody_reads, env=variables, check=False)
    assert done.returncode == 1


def test_rows_of_a_model_that_lies_elsewhere_are_the_same(tmp_path: Path) -> None:
    def at(folder: str) -> str:
        model = OwnModel(file=f"/{folder}/train.py", function="make", digest="1234", state_bytes=9)
        return sides.key(replace(item().case, model=model))

    assert at("base") == at("head")


def test_the_command_does_not_pass_what_it_could_not_compare(make: Make, tmp_path: Path) -> None:
    plan = [item()]
    first = calibration()
    other = calibration(write_depth=7, read_depth=7)
    base = make(plan, [first, *cost(plan[0])])
    head = make(plan, [other, *cost(plan[0])])
    slow = make(plan, [other, *cost(plan[0], 1.5)])
    results = ("--results", str(tmp_path / "results"))
    hollow = command("compare", base.name, head.name, *results)
    assert hollow.status == 3, hollow.errors
    shown = " ".join(hollow.output.split())
    assert "neither saves nor loads could: " in shown
    assert "2 not compared" in shown
    assert command("compare", base.name, slow.name, *results).status == 1


@pytest.mark.parametrize(
    ("option", "message"),
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
    tmp_path: Path, words: tuple[str, ...], option: tuple[str, str], message: str
) -> None:
    results = tmp_path / "results"
    refused = command(*words, *option, "--results", str(results))
    assert refused.status == 2, refused.errors
    assert message in refused.errors
    assert not results.exists()
