"""Runs with two arms, and runs that are compared with a baseline."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ab_commands import SUITE, Command, ckptbench, planned
from conftest import ROOT
from records import failure
from stubs import Ended, command
from test_own_models import bare_interpreter

from harness.analysis import comparison
from harness.analysis.runs import read_run
from harness.cli import compare, measuring
from harness.driver import arms
from harness.experiments.cost.records import SaveRecord
from harness.run import store
from harness.run.errors import UsageError
from harness.run.stored import folders

pytest_plugins = ["shared_fixtures"]


@pytest.mark.patient
@pytest.mark.slow
def test_the_first_run_is_the_baseline_and_the_next_is_compared_with_it(
    command: Command, tmp_path: Path
) -> None:
    argv = command("regress", "--suite", "quick", "--python", f"raw={sys.executable}")
    first = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (first.returncode, "is the baseline now" in first.stdout) == (0, True), first.stderr
    (baseline,) = folders(tmp_path / "results" / "baseline")
    assert baseline.parents[0].name == "quick-raw"
    assert baseline.parents[1].name == store.Run(baseline).manifest.machine
    records = baseline / "records.jsonl"
    records.write_text(re.sub(r'"file_bytes":(\d+)\d', r'"file_bytes":\1', records.read_text()))
    second = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (second.returncode, "files had" in second.stdout) == (1, True), second.stderr
    assert f"against {baseline.name}" in " ".join(second.stdout.split())
    calibrations = [
        record
        for run in folders(tmp_path)
        for record in store.Run(run).records
        if record.kind == "calibration"
    ]
    assert len(calibrations) == 2, "one of each run"
    assert len(set(calibrations)) == 1, "which is the baseline's"
    own_suite = tmp_path / "suites" / "quick.toml"
    own_suite.write_text(SUITE.replace('preset = "small"', 'preset = "light"'))
    changed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (changed.returncode, "has no row in common with today's suite" in changed.stderr) == (
        3,
        True,
    ), changed.stderr
    own_suite.write_text(SUITE)
    machine = (baseline / "manifest.json").read_text()
    (baseline / "manifest.json").write_text(machine.replace('"kernel": "', '"kernel": "an older '))
    elsewhere = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (
        elsewhere.returncode,
        " (kernel): remove" in " ".join(elsewhere.stderr.split()),
    ) == (3, True)
    (baseline / "manifest.json").write_text(machine)
    whole = records.read_text()
    lines = [line for line in whole.splitlines() if '"kind":"verified"' not in line]
    records.write_text("\n".join(lines) + "\n")
    third = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (third.returncode, "the baseline was interrupted" in third.stderr) == (3, True)
    records.write_text(whole)
    ended_later = store.Run(baseline)
    ended_later.append(failure(ended_later.plan[0].case.id))
    ended_later.close()
    fourth = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (fourth.returncode, "a row of the baseline" in fourth.stderr) == (3, True), fourth.stderr
    assert len(folders(tmp_path / "results")) == 2, (
        "nothing may be measured before the baseline is known to be good"
    )


@pytest.mark.parametrize(("failed", "place"), [(0, "baseline"), (1, "results")])
def test_a_first_run_in_which_a_row_failed_is_no_baseline(
    tmp_path: Path, failed: int, place: str
) -> None:
    baseline, results = tmp_path / "baseline", tmp_path / "results"
    results.mkdir()
    run = store.create(baseline, "quick", ["pytest"], planned(tmp_path), None)
    compare._settle_first(run, baseline, results, failed, compare.out)
    assert [found.parent.name for found in folders(tmp_path)] == [place]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A file that is there once the model of train.py beside it has been built."""
    file = tmp_path / "built"
    (tmp_path / "train.py").write_text(
        "import pathlib\n\nimport numpy as np\n\n\ndef make():\n"
        f"    pathlib.Path({str(file)!r}).touch()\n"
        "    return {'one': np.ones(5)}\n"
    )
    return file


def ab_of_own_model(folder: Path, interpreter: str | Path, *words: str) -> Ended:
    return command(
        *("ab", "gate", "--framework", "raw", "--model", f"{folder / 'train.py'}:make"),
        *("--a", str(interpreter), "--b", sys.executable, "--dir", str(folder)),
        *("--results", str(folder / "results"), *words),
    )


def test_a_mistyped_method_is_refused_before_the_model_is_built(built: Path) -> None:
    ended = ab_of_own_model(built.parent, sys.executable, "--method", "bufered")
    assert (ended.status, ended.escaped) == (2, "")
    assert "did you mean 'buffered'?" in " ".join(ended.errors.split())
    assert not built.exists()


def test_what_side_a_lacks_for_a_method_is_told_before_the_run(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(plan: object, scratch: Path) -> None:
        raise UsageError("it is built")

    monkeypatch.setattr(measuring, "refuse_what_does_not_fit", refuse)
    installed = Path(np.__file__).parent
    interpreter = bare_interpreter(
        built.with_name("bare"), installed, installed.with_name("numpy.libs")
    )
    named = ("--method", "direct", "--method", "deepfreeze")
    ended = ab_of_own_model(built.parent, interpreter, *named)
    told, refused = ended.errors.splitlines()
    assert told == f"{interpreter} lacks the module 'xxhash', which deepfreeze needs"
    assert refused == "ckptbench: it is built"


@pytest.mark.patient
@pytest.mark.slow
def test_a_slowdown_is_found_and_the_sides_alternate(ab: Command, tmp_path: Path) -> None:
    # A save of a millisecond takes three seconds more. Six pairs show that also while other tests
    # flush to the same disk.
    out = tmp_path / "out"
    done = subprocess.run(
        ab("long", "--b", "delay_s=3.0", "--out", str(out)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads((out / "comparison.json").read_text())
    durable = next(
        figure for figure in found["rows"][0]["figures"] if figure["figure"] == "durable"
    )
    assert (durable["verdict"], durable["ratio"] > 3) == ("slower", True)
    run = store.Run(store.find(tmp_path / "results", "latest"))
    jobs = [
        record.job for record in run.records if record.kind == "worker" and "save" in record.job
    ]
    assert [job[-2:] for job in jobs] == [
        "0a",
        "0b",
        "1b",
        "1a",
        "2a",
        "2b",
        "3b",
        "3a",
        "4a",
        "4b",
        "5b",
        "5a",
    ]
    assert [run.header["arms"][arm]["options"] for arm in arms.ARMS] == [{}, {"delay_s": 3.0}]
    shown = ckptbench("show", run.name, "--results", str(tmp_path / "results"))
    assert [text for text in ("arm a", "arm b", "delay_s=3.0") if text not in shown.stdout] == []


@pytest.mark.slow
def test_the_ranks_of_both_sides_are_started_by_the_mpirun_that_is_named(
    ab: Command, tmp_path: Path, own_mpirun: Path
) -> None:
    argv = ab(
        "quick", "--method", "buffered", "--b", ".", "--world", "2", "--mpirun", str(own_mpirun)
    )
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    run = store.Run(store.find(tmp_path / "results", "latest"))
    jobs = {record.job for record in run.records if record.kind == "worker"}
    assert {job[-1] for job in jobs} == set("ab")
    assert len(own_mpirun.with_name("started").read_text().split()) == len(jobs)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_sides(ab: Command, tmp_path: Path) -> None:
    driver = subprocess.Popen(
        ab("quick", "--b", "slowdown=2.0"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(
        "1b" in log.name for log in tmp_path.glob("results/*/logs/*")
    ):
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    assert "run --resume" in driver.communicate(timeout=30)[1]
    resumed = ckptbench("run", "--resume", "latest", "--results", str(tmp_path / "results"))
    assert resumed.returncode == 0, resumed.stderr
    read = read_run(store.find(tmp_path / "results", "latest"))
    assert [row.status for row in read.rows] == ["ok", "ok"]
    assert len(read.records.all(SaveRecord)) == 8
    assert comparison.of_arms(read).paired
