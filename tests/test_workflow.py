"""The example workflow uses real commands, and only a regression turns it red."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest
import typer
from conftest import ROOT

from harness.cli.app import app

WORKFLOW = ROOT / ".github" / "workflows" / "checkpoint-overhead.yml"
MEASURE = re.compile(
    r"- name: Measure base and head in turn\n +working-directory: head\n +run: \|\n((?: {10}.*\n)+)"
)
CKPTBENCH = ".venvs/harness/bin/ckptbench"


def script() -> str:
    found = MEASURE.search(WORKFLOW.read_text())
    assert found is not None
    return textwrap.dedent(found[1]).replace("${{ matrix.framework }}", "raw")


OTHERS = [(status, status, False) for status in (0, 1, 2, 137)]


@pytest.mark.parametrize(("status", "step", "warns"), [*OTHERS, (3, 0, True)])
def test_what_cannot_be_compared_is_a_warning_and_a_regression_an_error(
    tmp_path: Path, status: int, step: int, warns: bool
) -> None:
    program = tmp_path / CKPTBENCH
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-e", "-c", script()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "::warning" in done.stdout) == (step, warns)


def test_its_command_is_one_that_the_harness_takes() -> None:
    command = re.search(rf"{re.escape(CKPTBENCH)} (\w+) (.+?) \|\|", script().replace("\\\n", " "))
    assert command is not None
    name, words = command[1], command[2].split()
    found = typer.main.get_command(app).commands[name].make_context(name, words).params  # type: ignore[attr-defined]
    assert (found["suite_name"], found["framework"], found["a"], found["b"]) == (
        "gate",
        ["raw"],
        ["../base"],
        ["."],
    )
