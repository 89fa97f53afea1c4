"""Each wrong input ends in one sentence that says what is wrong, and never in a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fuzzing
import pytest
from conftest import planned
from stubs import Ended, command, nothing_measured

from harness.driver import suite
from harness.run import store
from harness.run.reading import InvalidLine, parse

RUN = fuzzing.RUN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A present folder with a stored run, where nothing is measured."""
    fuzzing.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    with nothing_measured():
        yield tmp_path


def changed(file: Path, change: Callable[[Any], object]) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def refused(ended: Ended) -> str:
    """The one sentence in which a command was refused."""
    assert (ended.status, ended.escaped) == (2, ""), ended
    assert ended.errors.startswith("ckptbench: ")
    assert ended.errors.count("\n") == 1, ended.errors
    return ended.errors.removeprefix("ckptbench: ").strip()


# Plan and manifest

READERS = {
    "plan.json": ("show", RUN, "--results", "results"),
    "manifest.json": ("report", RUN, "--results", "results", "--out", "out"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not JSON, or is cut short"),
        (b'{"cases": [', "it is not JSON, or is cut short"),
        (b"\x80\x02}q\x00.", "it is not JSON, or is cut short"),
        (b"[1, 2]", "it is not a JSON object"),
        (b"{}", "it lacks what a"),
        (b'{"a":' * 100_000, "it is nested too deeply"),
    ],
)
def test_a_file_that_is_no_plan_or_manifest_is_named(
    folder: Path, name: str, content: bytes, reason: str
) -> None:
    (folder / "results" / RUN / name).write_bytes(content)
    sentence = refused(command(*READERS[name]))
    assert sentence.startswith(f"run {RUN} cannot be read: {name}: {reason}")


@pytest.mark.parametrize("name", READERS)
def test_a_folder_in_place_of_a_file_is_named(folder: Path, name: str) -> None:
    file = folder / "results" / RUN / name
    file.unlink()
    file.mkdir()
    sentence = refused(command(*READERS[name]))
    assert sentence == f"run {RUN} cannot be read: {name}: Is a directory"


def test_a_missing_plan_is_named(folder: Path) -> None:
    (folder / "results" / RUN / "plan.json").unlink()
    sentence = refused(command("show", RUN, "--results", "results"))
    assert sentence == f"run {RUN} cannot be read: plan.json: No such file or directory"


@pytest.mark.parametrize("name", READERS)
def test_the_key_of_a_later_version_is_ignored(folder: Path, name: str) -> None:
    changed(folder / "results" / RUN / name, lambda values: values.update(weather=["fine"]))
    assert command(*READERS[name]).status == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda plan: plan.update(cases=[]), "it has no cases"),
        (lambda plan: plan["cases"].append(plan["cases"][0]), "stands there twice"),
        (lambda plan: plan.update(suite=["bench"]), "suite: Input should be a valid string"),
        (lambda plan: plan.update(goal={"precision": 0.05}), "goal._Goal.budget_s: Field required"),
        (lambda plan: plan.update(settings={"timeout_s": -5}), "cannot be given -5 s"),
        (lambda plan: plan["cases"][0].update(samples="2"), "cases.0.samples: Input should be"),
        (lambda plan: plan["cases"][0].update(processes=10**30), "cases.0.processes: Input should"),
        (lambda plan: plan["cases"][0].update(expected_failure="("), "is no regular expression"),
        (lambda plan: plan["cases"][0]["case"].update(world=10**9), "cases.0.case.world: Input"),
        (lambda plan: plan["cases"][0]["case"].update(world=0), "at least 1 rank, not 0"),
        (lambda plan: plan["cases"][0]["case"].update(dropout=float("nan")), "finite number"),
        (
            lambda plan: plan["cases"][0]["case"].update(experiment="energy"),
            "cases.0: experiment 'energy' is not one that this version knows",
        ),
        (
            lambda plan: plan["cases"][0]["case"].update(experiment="train"),
            "cases.0: every is a number from 1 on, not 0",
        ),
    ],
)
def test_a_plan_with_a_wrong_value_names_the_value(
    folder: Path, change: Callable[[Any], object], reason: str
) -> None:
    changed(folder / "results" / RUN / "plan.json", change)
    assert reason in refused(command("show", RUN, "--results", "results"))


@pytest.mark.parametrize(
    ("field", "value"), [("workload", "resnet51"), ("preset", "tiny"), ("launcher", "ssh")]
)
def test_a_run_does_not_go_on_with_a_case_that_cannot_be_measured(
    folder: Path, field: str, value: str
) -> None:
    file = folder / "results" / RUN / "plan.json"
    changed(file, lambda plan: plan["cases"][0]["case"].update({field: value}))
    words = ("run", "--resume", RUN, "--results", "results", "--dir", "here")
    assert repr(value) in refused(command(*words))


def test_a_name_in_brackets_is_no_markup(folder: Path) -> None:
    (folder / "results" / RUN).rename(folder / "results" / "[")
    (folder / "results").rename(folder / "[red]")
    assert "unknown framework '[/red]'" in refused(command("env", "create", "[/red]"))
    ended = command("show", "[", "--results", "[red]")
    assert (ended.status, ended.escaped) == (0, "")
    assert "run [, in [red]/[" in ended.output


# Records


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"schema":1,"kind":"save","a":' + '{"a":' * 5000, "nested too deeply"),
        ("9" * 5000, "not JSON"),
        ("\0\0\0", "not JSON"),
    ],
)
def test_a_strange_line_is_no_record(line: str, reason: str) -> None:
    with pytest.raises(InvalidLine, match=reason):
        parse(line)


def first_save(lines: list[str]) -> int:
    return next(number for number, line in enumerate(lines) if '"kind":"save"' in line)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"save_ns": 10**400}, "save.save_ns: Input should be less than or equal to"),
        ({"save_ns": -1}, "save.save_ns: Input should be greater than or equal to 0"),
        ({"rank": 10**12}, "save.rank: Input should be less than or equal to"),
        ({"files": "many"}, "save.files: Input should be a valid"),
        ({"case": 7}, "save.case: Input should be a valid string"),
    ],
)
def test_a_record_with_a_wrong_number_is_named_and_the_rest_is_shown(
    folder: Path, change: dict[str, Any], reason: str
) -> None:
    file = folder / "results" / RUN / "records.jsonl"
    lines = file.read_text().splitlines()
    number = first_save(lines)
    lines[number] = json.dumps(json.loads(lines[number]) | change)
    file.write_text("\n".join(lines) + "\n")
    ended = command("show", RUN, "--results", "results")
    assert (ended.status, ended.escaped) == (0, "")
    assert f"records.jsonl:{number + 1}: {reason}" in ended.errors


def test_bytes_that_are_no_text_damage_their_line_alone(folder: Path) -> None:
    file = folder / "results" / RUN / "records.jsonl"
    file.write_bytes(b"\xff\xfe\x00\n" + file.read_bytes())
    ended = command("show", RUN, "--results", "results")
    assert ended.status == 0
    assert "records.jsonl:1: not JSON" in ended.errors


def test_records_that_are_a_folder_are_named(folder: Path) -> None:
    file = folder / "results" / RUN / "records.jsonl"
    file.unlink()
    file.mkdir()
    sentence = refused(command("show", RUN, "--results", "results"))
    assert sentence == f"run {RUN} cannot be read: records.jsonl: Is a directory"


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Work as a user whom permissions bind, because they do not bind the superuser."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def open_the_way(folder: Path) -> None:
    """Let every user come as far as a folder, and import now what reads a run."""
    for place in (folder, *folder.resolve().parents):
        if not place.stat().st_mode & 0o001:
            place.chmod(place.stat().st_mode | 0o011)
    command("show", RUN, "--results", str(folder / "results"))


def test_records_that_nobody_may_read_are_named(folder: Path) -> None:
    open_the_way(folder)
    (folder / "results" / RUN / "records.jsonl").chmod(0)
    with as_nobody():
        ended = command("show", RUN, "--results", str(folder / "results"))
    assert refused(ended) == f"run {RUN} cannot be read: records.jsonl: Permission denied"


def test_a_folder_that_nobody_may_read_is_not_an_empty_one(folder: Path) -> None:
    open_the_way(folder)
    results = folder / "results"
    results.chmod(0)
    with as_nobody():
        ended = command("show", "--results", str(results))
    results.chmod(0o755)
    assert refused(ended) == f"cannot read {results}: Permission denied"


def test_a_file_in_place_of_the_results_is_not_an_empty_folder(folder: Path) -> None:
    sentence = refused(command("show", "--results", "a-file"))
    assert sentence == "cannot read a-file: Not a directory"


# The results folder

SMOKE = ("run", "smoke", "--framework", "raw", "--dir", "here")


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("a-file", "Not a directory"),
        ("a-file/below", "Not a directory"),
        ("/proc/none", "No such file or directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_results_folder_that_cannot_be_made_is_named(
    folder: Path, place: str, reason: str
) -> None:
    sentence = refused(command(*SMOKE, "--results", place))
    assert sentence == f"no run can be stored in {place}: {reason}"


def test_runs_begun_at_once_by_several_threads_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Standing(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2026, 1, 1, tzinfo=UTC)

    monkeypatch.setattr(store, "datetime", Standing)
    together = threading.Barrier(8)
    made: list[store.Run] = []

    def begin() -> None:
        together.wait()
        made.append(store.create(tmp_path, "smoke", [], [planned()], None))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.folder for run in made}) == 8
    assert all(run.plan == [planned()] for run in made)


def test_a_report_of_a_folder_leaves_out_runs_that_cannot_be_read(folder: Path) -> None:
    queued = store.create(folder / "results", "smoke", [], [planned()], None)
    cut = folder / "results" / "20260101-000000-smoke-raw"
    shutil.copytree(folder / "results" / RUN, cut)
    (cut / "plan.json").write_text("{")
    ended = command("report", "results", "--out", "out")
    assert (ended.status, ended.escaped) == (0, "")
    assert f"left out run {queued.name} has not begun to measure" in ended.errors
    assert f"left out run {cut.name} cannot be read: plan.json" in ended.errors
    assert (folder / "out" / "report.html").exists()


# Values of options


@pytest.mark.parametrize("value", ["-5", "0", "nan", "inf", "-inf"])
def test_a_timeout_is_a_duration(folder: Path, value: str) -> None:
    sentence = refused(command(*SMOKE, "--timeout", value, "--results", "results"))
    assert sentence.startswith("--timeout must be a number of seconds above 0, not ")


@pytest.mark.parametrize("value", ["nan", "0", "2"])
def test_a_precision_is_a_share(folder: Path, value: str) -> None:
    sentence = refused(command(*SMOKE, "--precision", value, "--results", "results"))
    assert sentence == f"--precision must be a share from 0.001 to 1, not {value}"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--budget", "9" * 400 + "h"),
        ("--world", "9" * 5000),
        ("--world", "65537"),
        ("--option", "slowdown=nan"),
        ("--option", "slowdown=" + "[" * 10_000),
    ],
)
def test_a_number_without_bounds_is_refused(folder: Path, option: str, value: str) -> None:
    more = ["--precision", "0.05"] if option == "--budget" else ["--method", "double"]
    words = [*SMOKE, *more, option, value, "--results", "results"]
    assert refused(command(*words))


@pytest.mark.parametrize(
    "option",
    ["--dir", "--results", "--python", "--method", "--option", "--framework", "--mpirun", "--site"],
)
def test_an_empty_value_is_refused(folder: Path, option: str) -> None:
    expected = f"the value of {option} is empty; give one, or leave it out"
    assert refused(command("run", "smoke", option, "")) == expected
    assert refused(command("run", "smoke", f"{option}=")) == expected


def test_an_empty_argument_is_refused(folder: Path) -> None:
    assert refused(command("show", "")) == "an argument is empty; give one, or leave it out"


def test_an_argument_that_is_no_text_is_refused(folder: Path) -> None:
    argument = os.fsdecode(b"results-\xff")
    assert "is not UTF-8" in refused(command(*SMOKE, "--results", argument))


# Suites


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"description = ", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b"a = " + b"[" * 10_000, "is nested too deeply"),
        (b'description = "odd"\nsweep = []\n', "sweep: "),
    ],
)
def test_a_broken_suite_is_named_beside_the_good_ones(
    folder: Path, content: bytes, reason: str
) -> None:
    suites = folder / "suites"
    suites.mkdir()
    (suites / "good.toml").write_bytes((suite.SUITES / "smoke.toml").read_bytes())
    (suites / "odd.toml").write_bytes(content)
    with fuzzing.suites_in(suites):
        ended = command("list", "suites")
    assert "good" in ended.output
    assert refused(ended).startswith(f"{suites}/odd.toml")
    assert reason in ended.errors


@pytest.mark.parametrize(
    "words",
    [
        ("list", "methods", "--adapter", "~nobody-of-that-name"),
        ("run", "smoke", "--framework", "raw", "--model", "~nobody-of-that-name/a.py:make"),
        ("run", "smoke", "--framework", "raw", "--python", "raw=~nobody-of-that-name/python"),
        ("ab", "gate", "--framework", "raw", "--a", "~nobody-of-that-name"),
    ],
    ids=" ".join,
)
def test_the_home_of_a_user_who_is_not_there_is_no_mistake(
    words: tuple[str, ...], folder: Path
) -> None:
    assert "nobody-of-that-name" in refused(command(*words))
