"""The report's page holds tables, commands that measure a row again, and machines apart."""

from __future__ import annotations

import base64
import functools
import re
import shlex
import time
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import stubs
from references import reference, references
from reported import HOSTILE, SPEEDS_S, hostile_run, item, measured, store_run
from scale_of_reading import write_run
from stubs import Ended

from harness import experiments
from harness.analysis.columns import columns_of, sort_value
from harness.analysis.pools import comparable_groups
from harness.analysis.report.again import command
from harness.analysis.report.page import Machine, Picture, page
from harness.analysis.runs import REFERENCE, ReadRun, read_run
from harness.driver import catalog, machine, options, planning, suite
from harness.run.stored import folders

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><path id="a" d="M0 0"/></svg>'


@pytest.fixture
def hostile(tmp_path: Path) -> ReadRun:
    return read_run(hostile_run(tmp_path))


def text_of(html: str) -> str:
    """Return roughly the text that a reader sees of a page."""
    return unescape(re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<(script|style)>.*?</\1>", "", html)))


def test_markup_from_a_record_is_text_on_the_page(hostile: ReadRun) -> None:
    html = page([Machine([hostile])])
    assert html.count("<script>") == 1
    assert "<img" not in html
    assert "<b>" not in html
    assert HOSTILE in unescape(html)


def test_the_page_names_the_damaged_line(hostile: ReadRun) -> None:
    assert (
        f"{hostile.name}/records.jsonl, line {len(hostile.stored.records) + 1}: not JSON"
        in text_of(page([Machine([hostile])]))
    )


def test_every_row_has_its_place_and_its_command() -> None:
    runs = references()
    html = page([Machine(runs)])
    count = sum(len(run.rows) for run in runs)
    assert len(re.findall(r"<tr id=", html)) == count
    assert len(re.findall(r'<div id="[^"]*-again">', html)) == count
    anchors = re.findall(r' id="([^"]*)"', html)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r'href="#([^"]*)"', html)) <= set(anchors)


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    html = page([Machine(references(), [Picture("A", "of a", (), SVG)])])
    assert re.findall(r'(?:src|href)="(?!#|data:)', html) == []
    assert "@import" not in html
    assert "url(" not in html


@pytest.mark.parametrize("name", [run.name for run in folders(REFERENCE)])
def test_a_command_plans_the_row_it_is_for(name: str) -> None:
    run = reference(name)
    cases = [planned.case for planned in run.stored.plan]
    wrong = [
        case for case in cases if case.id not in planned_by(command(case, run.stored.header, cases))
    ]
    assert [(case.framework, case.method, case.world) for case in wrong] == []


@functools.cache
def planned_by(line: str) -> set[str]:
    """The cases that a command of the report measures, by the planner itself.

    The rows of a run share a few commands.
    """
    words = shlex.split(line)
    assert words[:2] == ["ckptbench", "run"]
    given: dict[str, list[str]] = {}
    for name, value in zip(words[3::2], words[4::2], strict=True):
        given.setdefault(name, []).append(value)
    frameworks = catalog.select(catalog.frameworks(), given["--framework"])
    found = planning.plan(
        suite.load(words[2]),
        frameworks,
        workloads=given["--workload"],
        methods=given.get("--method"),
        worlds=[int(world) for world in given.get("--world", ())],
        strategies=given.get("--strategy"),
        device=given.get("--device", ["cpu"])[0],
        launcher=given.get("--launcher", [None])[0],
        options=options.parse_options(given.get("--option", ())),
    )
    return {planned.case.id for planned in found}


def test_a_command_has_what_the_user_had_set() -> None:
    case = item(
        "buffered[depth=2,crc=false]",
        device="cuda",
        world=4,
        strategy="ddp",
        launcher="slurm",
        nodes=2,
    ).case
    header = {"suite": "bench", "directory": "/scratch of mine", "python": ["raw=/opt/python"]}
    assert command(case, header, [case]) == (
        "ckptbench run bench --framework raw --workload resnet50 --method buffered "
        "--option depth=2 --option crc=false --world 4 --strategy ddp --launcher slurm --nodes 2 "
        "--device cuda --dir '/scratch of mine' --python raw=/opt/python"
    )
    header["settings"] = {"timeout_s": 150.0, "site": "/etc/site.toml"}
    assert command(case, header, [case]).endswith(" --timeout 150 --site /etc/site.toml")


def test_the_first_column_means_what_its_heading_says() -> None:
    rows = {row.first_heading: row for run in references() for row in run.rows}
    meanings = {heading: row.first_meaning for heading, row in rows.items()}
    assert meanings["way back"] == "how training comes back after a failure"
    assert meanings["framework"] == "the framework that trains"
    assert meanings["method"].startswith("how the checkpoint is written")


def test_every_column_of_every_table_has_a_meaning() -> None:
    classes = {type(row) for run in references() for row in run.rows}
    # resume and rerun share one
    assert len(classes) == len(experiments.names()) - 1
    for row_class in classes:
        for name, column in columns_of(row_class).items():
            assert len(column.meaning.split()) > 1, f"{row_class.__name__}.{name}"


def test_every_experiment_has_a_question() -> None:
    questions = [experiments.experiment(name).question for name in experiments.names()]
    assert len(set(questions)) == len(questions)
    assert all(question.endswith("?") for question in questions)


def test_what_a_column_is_sorted_by_is_what_it_shows(hostile: ReadRun) -> None:
    by_method = {
        row.method: sort_value(row, "durable_s")
        for row in hostile.rows
        if row.workload == "resnet50"
    }
    assert {name: by_method[name] for name in SPEEDS_S} == pytest.approx(SPEEDS_S)
    assert by_method[f"evil{HOSTILE}"] is None
    assert {sort_value(row, "file_bytes") for row in hostile.rows} == {1.1, None}


def test_unlike_machines_stand_apart_and_like_ones_together(tmp_path: Path) -> None:
    here = machine.capture(tmp_path)
    machines = [
        here,
        replace(here, machine="ffffffffffff"),
        replace(here, free_bytes=1, load_average=9.0),
    ]
    case = item("direct")
    found = measured(case.case.id, 0.1)
    runs = [
        read_run(store_run(tmp_path / str(number), [case], found, machine))
        for number, machine in enumerate(machines)
    ]
    groups = comparable_groups(runs)
    assert sorted(len(group) for group in groups) == [1, 2]
    html = page([Machine(group) for group in groups])
    assert "Machine ffffffffffff" in text_of(html)
    assert len(re.findall(r'<table class="results">', html)) == 2


def test_rows_of_several_ranks_say_how_many_and_what_they_change(tmp_path: Path) -> None:
    one, two = item("direct"), item("direct", world=2, strategy="flat", launcher="mpirun")
    found = [*measured(one.case.id, 0.1)]
    found += [
        replace(record, rank=rank)
        for rank in range(2)
        for record in measured(two.case.id, 0.3)
        if hasattr(record, "rank")
    ]
    html = page([Machine([read_run(store_run(tmp_path, [one, two], found))])])
    row = " ".join(text_of(html[html.index('<tr id="m1-cost-2"') :]).split())
    assert re.search(r"\b2\s", row)
    assert "3.00 [3.00–3.00]" in row
    assert float(re.search(r'data-value="([^"]*)">3.00', html)[1]) == pytest.approx(3)
    assert "--world 2 --strategy flat" in html


def test_a_heading_stands_over_its_numbers(tmp_path: Path) -> None:
    one, two = item("direct"), item("direct", world=2, strategy="flat", launcher="mpirun")
    found = [*measured(one.case.id, 0.1)]
    found += [
        replace(record, rank=rank)
        for rank in range(2)
        for record in measured(two.case.id, 0.3)
        if hasattr(record, "rank")
    ]
    html = page([Machine([read_run(store_run(tmp_path, [one, two], found))])])
    heads = re.findall(r'<th scope="col"( class="number")?>(.*?)</th>', html)
    cells = re.findall(
        r'<t[hd] (?:scope="row"|class="(number|text)[^"]*")', html[html.index("<tr id=") :]
    )
    assert "to one rank's" in [unescape(name) for _, name in heads]
    assert [bool(number) for number, _ in heads] == [
        kind == "number" for kind in cells[: len(heads)]
    ]


@pytest.mark.parametrize(
    ("size", "wide"),
    [
        ('width="684pt" height="1096.56pt"', False),
        ('width="1252.8pt" height="761pt"', True),
        ('width="684pt" height="300pt"', False),
        ("", False),
    ],
)
def test_a_wide_picture_lies_on_its_side_on_paper(hostile: ReadRun, size: str, wide: bool) -> None:
    picture = Picture("A", "of a", (), f'<svg xmlns:xlink="x" {size} viewBox="0 0 1 1"/>'.encode())
    assert ('<figure class="wide">' in page([Machine([hostile], [picture])])) == wide


def test_a_figure_says_what_it_lacks(hostile: ReadRun) -> None:
    seen = text_of(
        page(
            [
                Machine(
                    [hostile], [Picture("Stall", "Shorter is better.", ("jax: not measured",), SVG)]
                )
            ]
        )
    )
    assert "Shorter is better." in seen
    assert "jax: not measured" in seen


def test_a_run_that_measured_nothing_still_has_a_page(tmp_path: Path) -> None:
    run = read_run(store_run(tmp_path, [item("direct")], []))
    seen = text_of(page([Machine([run])]))
    assert "No run here shows how fast a checkpoint is." in seen
    assert "not measured to the end: the run was interrupted" in seen


def reported(*arguments: str) -> Ended:
    return stubs.command("report", *arguments)


def test_the_command_writes_the_page_and_names_damaged_lines(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "results")
    done = reported("--results", str(tmp_path / "results"), "--out", str(tmp_path / "out"))
    assert done.status == 0, done.errors
    assert str(tmp_path / "out" / "report.html") in done.output
    assert f"{run}/records.jsonl:" in done.errors
    html = (tmp_path / "out" / "report.html").read_text()
    assert run.name in html
    drawn = sorted((tmp_path / "out").glob("*.svg"))
    assert drawn
    assert all(base64.b64encode(svg.read_bytes()).decode() in html for svg in drawn)
    assert all(svg.with_suffix(".png").exists() for svg in drawn)


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path: Path) -> None:
    names = [hostile_run(tmp_path / "results" / place).name for place in ("a", "b")]
    done = reported(
        str(tmp_path / "results"),
        str(tmp_path / "results" / "a" / names[0]),
        "--out",
        str(tmp_path / "out"),
    )
    assert done.status == 0, done.errors
    assert len(re.findall("<summary>Run ", (tmp_path / "out" / "report.html").read_text())) == 2


def test_each_of_unlike_machines_has_its_own_folder_of_figures(tmp_path: Path) -> None:
    case = item("direct")
    here = machine.capture(tmp_path)
    for number, manifest in enumerate((here, replace(here, kernel="other"))):
        store_run(tmp_path / "results" / str(number), [case], measured(case.case.id, 0.1), manifest)
    done = reported(str(tmp_path / "results"), "--out", str(tmp_path / "out"))
    assert done.status == 0, done.errors
    drawn = {
        folder: {svg.name for svg in (tmp_path / "out" / folder).glob("*.svg")}
        for folder in ("machine-1", "machine-2")
    }
    assert drawn["machine-1"] == drawn["machine-2"] != set()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("plan.json", "{", "cannot be read"),
        ("plan.json", "{}", "cannot be read"),
        ("manifest.json", "{}", "cannot be read"),
        ("plan.json", None, "cannot be read"),
        ("manifest.json", None, "has not begun to measure: there is nothing to report yet"),
    ],
)
def test_a_folder_that_is_no_whole_run_gets_one_sentence(
    file: str, content: str | None, message: str, tmp_path: Path
) -> None:
    run = hostile_run(tmp_path)
    if content is None:
        (run / file).unlink()
    else:
        (run / file).write_text(content)
    done = reported(str(run), "--out", str(tmp_path / "out"))
    assert done.status == 2, done.errors
    assert message in done.errors
    assert not done.escaped
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_gets_one_sentence(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "results")
    (tmp_path / "out").touch()
    done = reported(str(run), "--out", str(tmp_path / "out"))
    assert done.status == 2
    assert f"{tmp_path / 'out'} cannot be made: File exists" in done.errors.replace("\n", " ")


def test_an_unknown_run_gets_the_nearest_name(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    done = reported(run.name[:-1], "--results", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.status == 2
    assert f"did you mean {run.name!r}?" in done.errors


def test_a_large_run_is_read_and_reported_within_its_share_of_a_minute(tmp_path: Path) -> None:
    folder = write_run(tmp_path, samples=20_000)
    begin_s = time.process_time()  # not wall time: the machine may do other work too
    run = read_run(folder)
    html = page([Machine([run])])
    assert time.process_time() - begin_s < 6, "200,000 samples in a minute"
    assert {row.status for row in run.rows} == {"ok"}
    assert len(re.findall("<tr id=", html)) == len(run.rows)
