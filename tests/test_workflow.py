"""The example workflow uses real commands, and only a regression turns it red."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest
import typer
from conftest import ROOT

from harness.cli.application import app

WORKFLOW = ROOT / ".github" / "workflows" / "checkpoint-overhead.yml"
STEPS = {"Measure": "gate", "Strike saves of": "faults"}
"""The first words of the steps that measure, and their suites."""

CKPTBENCH = ".venvs/harness/bin/ckptbench"


def script(step: str) -> str:
    head = rf"- name: {step} base and head in turn\n(?: +if: .*\n)? +working-directory: head\n"
    found = re.search(rf"{head} +run: \|\n((?: {{10}}.*\n)+)", WORKFLOW.read_text())
    assert found is not None
    return textwrap.dedent(found[1]).replace("${{ matrix.framework }}", "raw")


OTHERS = [(status, status, False) for status in (0, 1, 2, 137)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("status", "ended", "warns"), [*OTHERS, (3, 0, True)])
def test_what_cannot_be_compared_is_a_warning_and_a_regression_an_error(
    tmp_path: Path, step: str, status: int, ended: int, warns: bool
) -> None:
    program = tmp_path / CKPTBENCH
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-e", "-c", script(step)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "::warning" in done.stdout) == (ended, warns)


@pytest.mark.parametrize(("step", "suite"), STEPS.items())
def test_its_command_is_one_that_the_harness_takes(step: str, suite: str) -> None:
    words = script(step).replace("\\\n", " ")
    command = re.search(rf"{re.escape(CKPTBENCH)} (\w+) (.+?) \|\|", words)
    assert command is not None
    name, options = command[1], command[2].split()
    found = typer.main.get_command(app).commands[name].make_context(name, options).params  # type: ignore[attr-defined]
    assert (found["suite_name"], found["framework"], found["a"], found["b"]) == (
        suite,
        ["raw"],
        ["../base"],
        ["."],
    )
