"""A closed, full, narrow or foreign output, and Ctrl-C during an import, give no traceback.

The results folder is an output too.
"""

from __future__ import annotations

import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fuzzing
import pytest
from conftest import ROOT
from stubs import command, nothing_measured

from harness.cli import app as cli_app

RUN = fuzzing.RUN
CKPTBENCH = [sys.executable, "-c", "from harness.cli import main; main()"]
SHELL = f"{sys.executable} -c 'from harness.cli import main; main()'"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A present folder with a stored run, where nothing is measured."""
    fuzzing.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    with nothing_measured():
        yield tmp_path


def in_a_shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_output_is_no_mistake(closed: str) -> None:
    done = in_a_shell(f"{SHELL} list suites {closed}")
    assert (done.returncode, done.stderr) == (0, "")


FULL = "ckptbench: the output or a file cannot be written or read: No space left on device\n"


def test_a_full_output_is_named() -> None:
    done = in_a_shell(f"{SHELL} list suites > /dev/full")
    assert (done.returncode, done.stderr) == (2, FULL)


@pytest.mark.parametrize(
    "what", ["list methods", "show --format json 20261123-104042-bench-pytorch"]
)
def test_an_output_that_nobody_reads_to_the_end_is_no_mistake(what: str) -> None:
    done = in_a_shell(f"{SHELL} {what} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "status"), [("show no-such-run", 2), ("run smoke --framework pytorhc", 2)]
)
def test_messages_that_nobody_reads_leave_the_exit_status(words: str, status: int) -> None:
    done = in_a_shell(f"{SHELL} {words} 2>&1 >/dev/null | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LANG": "C", "LC_ALL": "C"},
        {"PYTHONUTF8": "0", "LC_ALL": "C"},
    ],
)
def test_an_output_that_is_not_utf_8_gets_question_marks(variables: dict[str, str]) -> None:
    done = in_a_shell(f"{SHELL} show 20261123-104042-bench-pytorch", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "torch-save" in done.stdout


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a tiny file system, or skip the test where that is impossible."""
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_results_folder_is_named_and_left_empty(tmp_path: Path) -> None:
    full = tmp_path / "full"
    with mounted(full, "size=16k"):
        (full / "filler").write_bytes(bytes(16384 - 4096))
        ended = subprocess.run(
            [*CKPTBENCH, "run", "smoke", "--framework", "raw", "--results", str(full)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        left = [file.name for file in full.iterdir()]
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        f"ckptbench: no run can be stored in {full}: No space left on device"
    )
    assert left == ["filler"]


def test_a_read_only_results_folder_is_named(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    with mounted(sealed, "size=16k,ro"):
        ended = subprocess.run(
            [*CKPTBENCH, "run", "smoke", "--framework", "raw", "--results", str(sealed)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        f"ckptbench: no run can be stored in {sealed}: Read-only file system"
    )


# A shell has the programs that it starts in the background ignore interruptions.
PROGRAM = "\n".join(
    [
        "import os, signal",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        "from harness.cli import main",
        "os.write(1, b'begun')",
        "main()",
    ]
)


@pytest.mark.parametrize("seed", range(6))
def test_an_interruption_during_the_imports_prints_nothing(seed: int) -> None:
    argv = [sys.executable, "-c", PROGRAM, "list", "methods"]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(5) == b"begun"
        time.sleep(random.Random(seed).uniform(0.02, 0.3))
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        process.stdout.read()
    # On a busy machine the command may have ended before.
    assert (process.returncode, errors) in [(130, b""), (0, b"")]


# Narrow terminals


@pytest.mark.parametrize("width", [20, 40, 60])
@pytest.mark.parametrize(
    "words",
    [
        ("show", RUN, "--results", "results"),
        ("compare", RUN, fuzzing.GOOD, "--results", "results"),
        ("list", "methods"),
        ("list", "suites"),
        ("list", "workloads"),
    ],
)
def test_a_narrow_terminal_breaks_no_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], width: int
) -> None:
    monkeypatch.setattr(cli_app.out, "width", width)
    lines = command(*words).output.splitlines()
    assert lines
    letters = [line for line in lines if len(line.strip()) == 1]
    assert len(letters) <= len(lines) // 20, lines


def test_a_terminal_of_forty_columns_shows_a_block_for_each_row() -> None:
    reading, writing = pty.openpty()
    argv = [*CKPTBENCH, "list", "workloads"]
    variables = os.environ | {"COLUMNS": "40", "TERM": "dumb"}
    subprocess.run(argv, cwd=ROOT, env=variables, stdout=writing, check=True)
    os.close(writing)
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(reading, 65536):
            shown += part
    os.close(reading)
    assert b"25,557,032" in shown
