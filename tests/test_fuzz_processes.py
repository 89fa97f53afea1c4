"""Any words and any damage end so in a process of its own too, as a user runs the command.

They stand apart from test_fuzz.py, because no process can start as long as its tests run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fuzzing
import pytest
from fuzzing import DamagedRun, Line
from hypothesis import HealthCheck, given, settings
from stubs import ROOT, Ended
from test_fuzz import CHEAP, COMPARING, require_an_end


def process(place: Path, words: tuple[str, ...]) -> Ended:
    """Run a command in a process of its own, with the same stubs."""
    argv = [sys.executable, str(ROOT / "tests" / "stubs.py"), *words]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=place, env=variables, capture_output=True, check=False)
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


FEW = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.patient
@pytest.mark.slow
@FEW
@given(line=fuzzing.command_lines())
def test_any_words_end_so_in_a_process_of_their_own(tmp_path: Path, line: Line) -> None:
    fuzzing.prepare(tmp_path)
    require_an_end(process(tmp_path, line.words))


@pytest.mark.patient
@pytest.mark.slow
@FEW
@given(run=fuzzing.damaged_runs([*CHEAP, *COMPARING]))
def test_a_damaged_run_ends_so_in_a_process_of_its_own(tmp_path: Path, run: DamagedRun) -> None:
    run.write(fuzzing.prepare(tmp_path))
    require_an_end(process(tmp_path, run.line.words))
