"""A person's wrong words get one sentence and exit status 2, and lists can be read."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import pandas
import pytest
from conftest import ROOT, Measure, Measured, faulty, planned
from stubs import command

from harness.run.stored import RESULTS, run_argument


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "bench", "--framework", "pytorh"],
            "unknown framework 'pytorh'; did you mean 'pytorch'?",
        ),
        (
            ["run", "smoke", "--framework", "raw", "--workload", "resnet5"],
            "unknown workload 'resnet5'",
        ),
        (["run", "smoke", "--framework", "raw", "--method", "direkt"], "unknown method 'direkt'"),
        (["run", "benhc", "--framework", "raw"], "unknown suite 'benhc'"),
        (["run", "smoke", "--framework", "raw", "--device", "tpu"], "tpu"),
        (
            ["run", "smoke", "--framework", "raw", "--world", "two"],
            "--world must be numbers such as 1,2,4, not 'two'",
        ),
        (["run", "smoke", "--framework", "raw", "--world", "0"], "0"),
        (
            ["run", "smoke", "--framework", "raw", "--option", "fault"],
            "a method's option must be KEY=VALUE, such as crc=false, not 'fault'",
        ),
        (
            ["run", "smoke", "--framework", "raw", "--dir", "/nowhere/at/all"],
            "scratch directory /nowhere/at/all does not exist",
        ),
        (
            ["run", "smoke", "--framework", "raw", "--dir", "pyproject.toml"],
            "pyproject.toml is not a directory",
        ),
        (["run", "smoke", "--framework", "raw", "--python", "raw=/no/python"], "/no/python"),
        (
            ["run", "smoke", "--framework", "raw", "--mpirun", "/no/mpirun"],
            "--mpirun: there is no file /no/mpirun",
        ),
        (
            ["run", "smoke", "--framework", "raw", "--python", "raw"],
            "--python must be FRAMEWORK=PATH, such as pytorch=/opt/torch/bin/python, not 'raw'",
        ),
        (["show", "--format", "jsn"], "unknown format 'jsn'; did you mean 'json'?"),
        (["list", "method"], "unknown list 'method'; did you mean 'methods'?"),
        (
            ["list", "methods", "--framework", "pytorsh"],
            "unknown framework 'pytorsh'; did you mean 'pytorch'?",
        ),
        (
            ["list", "suites", "--framework", "pytorch"],
            "suites are those of all frameworks, so leave out --framework",
        ),
    ],
)
def test_wrong_usage_gets_one_sentence_and_exit_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    if arguments[0] in ("run", "show"):
        arguments = [*arguments, "--results", str(tmp_path)]
    done = command(*arguments)
    assert done.status == 2, done.errors
    assert message in done.errors
    assert not done.escaped
    assert not list(tmp_path.iterdir()), (
        "nothing may be stored before everything is known to be right"
    )


@pytest.mark.parametrize(
    "option",
    [
        ["--precision", "0.05"],
        ["--summary-above", "8"],
        ["--mpirun", "/usr/bin/mpirun"],
        ["--method", "direct"],
        ["--world", "2"],
        ["--device", "cuda"],
        ["--budget", "5m"],
        ["--device", "cpu"],
    ],
)
def test_a_run_that_goes_on_keeps_what_it_was_told(option: list[str], shown: Measured) -> None:
    done = command("run", "--resume", str(shown.run.folder), *option)
    why = "because --resume keeps what the run was asked for at first"
    assert (done.status, done.errors) == (2, f"ckptbench: leave {option[0]} out, {why}\n")


def test_a_run_of_another_suite_does_not_go_on(shown: Measured) -> None:
    done = command("run", "smoke", "--resume", str(shown.run.folder))
    why = f"run {shown.run.name} is of suite test, not smoke"
    assert (done.status, done.errors) == (2, f"ckptbench: {why}\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["smoke", "--strategy", "ddp", "--framework", "pytorch"],
            "a strategy is for several ranks, and suite smoke has one rank here: leave --strategy "
            "out, or give --world 2",
        ),
        (
            ["drills", "--precision", "0.05", "--framework", "pytorch"],
            "leave --precision out, because the suite drills has no times that are sampled in "
            "several processes",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(arguments: list[str], why: str) -> None:
    done = command("run", *arguments)
    assert (done.status, done.errors) == (2, f"ckptbench: {why}\n")


def test_a_run_that_does_not_fit_is_refused_before_it_starts(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        done = command(
            "run",
            "bench",
            "--framework",
            "raw",
            "--dir",
            str(small),
            "--results",
            str(tmp_path / "results"),
        )
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
    assert done.status == 2
    assert "0.06 GiB free, and the run needs" in done.errors
    assert not (tmp_path / "results").exists()


def test_show_of_a_run_that_does_not_exist_lists_those_that_do(shown: Measured) -> None:
    done = command("show", "nope", "--results", str(shown.run.folder.parent))
    assert done.status == 2
    assert shown.run.name in done.errors


def test_show_without_any_run_says_so(tmp_path: Path) -> None:
    done = command("show", "--results", str(tmp_path))
    assert (done.status, done.errors) == (
        2,
        f"ckptbench: there are no runs in {tmp_path} yet; "
        "measure one, or name the folder with --results\n",
    )


@pytest.fixture(scope="module")
def shown(measure: Measure) -> Measured:
    return measure([planned("buffered", processes=2), faulty("no-op-load")])


def show(run: Measured, *arguments: str) -> str:
    done = command("show", run.run.name, "--results", str(run.run.folder.parent), *arguments)
    assert done.status == 0, done.errors
    return done.output


def test_the_table_says_what_it_means_and_why_a_row_failed(shown: Measured) -> None:
    text = " ".join(show(shown).split())
    assert "resnet50 small on cpu: 1.06 MB of state" in text
    assert "method covers stall durable" in text
    assert "buffered makes a verified full checkpoint durable fastest" in text
    assert "double[fault=no-op-load]: failed in verify: Mismatch:" in text


def test_json_is_the_stable_interface(shown: Measured) -> None:
    good, bad = json.loads(show(shown, "--format", "json"))
    assert (good["status"], good["verified"], good["samples"] > 0) == ("ok", True, True)
    assert good["durable_s_low"] <= good["durable_s"] <= good["durable_s_high"]
    assert (bad["status"], bad["durable_s"], bad["phase"]) == ("failed", None, "verify")


def test_markdown_and_csv_can_be_pasted(shown: Measured) -> None:
    headings = show(shown, "--format", "markdown")
    assert "| method | covers | stall | durable |" in headings
    # On a busy machine intervals are so wide that a terminal's table folds these two.
    assert "| power-safe | verified |" in headings
    assert (
        show(shown, "--format", "csv")
        .splitlines()[0]
        .startswith("schema,framework,method,workload")
    )


def test_a_damaged_line_is_named_and_the_rest_is_shown(shown: Measured, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / shown.run.name
    shutil.copytree(shown.run.folder, copy)
    records = copy / "records.jsonl"
    lines = records.read_text().splitlines()
    lines[3] = lines[3][: len(lines[3]) // 2]
    records.write_text("\n".join(lines) + "\n")
    done = command("show", shown.run.name, "--results", str(tmp_path))
    assert done.status == 0
    assert f"{records}:4: not JSON" in done.errors
    assert "buffered" in done.output


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("frameworks", ["pytorch", "raw"]),
        ("methods", ["torch-save", "safetensors", "dcp-async-tuned", "direct"]),
        ("workloads", ["25,557,032", "244,397,083", "bf16-mixed"]),
        ("suites", ["smoke", "bench", "full"]),
    ],
)
def test_lists_name_what_there_is(what: str, expected: list[str]) -> None:
    done = command("list", what)
    assert done.status == 0
    assert [word for word in expected if word not in done.output] == []


def test_doctor_reports_this_machine() -> None:
    done = command("doctor")
    assert done.status == 0
    assert [
        word for word in ("strace", "disk", "memory", "page cache") if word not in done.output
    ] == []


def test_a_run_is_resumed_by_its_name_or_elsewhere_by_its_folder(tmp_path: Path) -> None:
    assert run_argument(RESULTS / "a run") == "'a run'"
    assert run_argument(tmp_path / "run") == str(tmp_path / "run")


def test_the_libraries_of_commands_are_compiled() -> None:
    """Each command would compile them anew if Python must keep nothing, which takes five seconds.

    No test imports all modules of a library, so only the setup can have compiled them.
    """
    for library in (pandas, matplotlib):
        modules = Path(library.__path__[0]).rglob("*.py")
        compiled = [Path(importlib.util.cache_from_source(str(module))) for module in modules]
        assert len(compiled) > 100
        assert [path for path in compiled if not path.exists()] == []


@pytest.mark.parametrize("library", ["scipy", "matplotlib"])
def test_a_command_does_not_import_what_few_of_them_need(library: str) -> None:
    program = f"import sys, harness.cli.application; sys.exit({library!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60)
    assert done.returncode == 0
