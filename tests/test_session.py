"""A run that is killed, interrupted or starved loses nothing and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, Measure, faulty, planned

from harness.run import store

CKPTBENCH = [sys.executable, "-c", "from harness.cli import main; main()"]
KILLS_AFTER_S = (0.3, 0.9, 1.6, 0.6, 2.4)  # counted from when a worker is at work


def command(results: Path, where: Path, *extra: str) -> list[str]:
    python = f"raw={sys.executable}"
    return [
        *CKPTBENCH,
        "run",
        "smoke",
        "--results",
        str(results),
        "--dir",
        str(where),
        "--python",
        python,
        *extra,
    ]


START = ("--framework", "raw", "--workload", "resnet50")


def start(argv: list[str]) -> subprocess.Popen[str]:
    """Start a driver that heeds Ctrl-C, even if a shell has put the tests in the background."""
    return subprocess.Popen(
        argv,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )


def heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def processes_in(where: Path) -> list[psutil.Process]:
    """Return the processes of a run. Its folder names jobs, and working files name helpers."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        variables = process.info["environ"] or {}
        if str(where) in variables.get("TMPDIR", "") and process.pid != os.getpid():
            found.append(process)
    return found


def counted(records: list) -> Counter:
    """Return the number of samples of each cell, without warm-ups."""
    return Counter(
        (r.kind, r.case, r.process, r.rank)
        for r in records
        if r.kind in ("save", "load") and not r.warmup
    )


@pytest.mark.slow
def test_a_run_killed_many_times_repeats_nothing_and_loses_nothing(
    tmp_path: Path, scratch: Path
) -> None:
    where = scratch / "killed"
    where.mkdir()
    argv = command(tmp_path, where, *START)
    seen: list[Counter] = []
    for after_s in KILLS_AFTER_S:
        driver = start(argv)
        deadline = time.monotonic() + 30
        while not processes_in(where) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(after_s)
        driver.kill()
        driver.communicate()
        if store.folders(tmp_path):
            argv = command(tmp_path, where, "--resume", "latest")
            seen.append(counted(store.Run(store.find(tmp_path, "latest")).records))
    deadline = time.monotonic() + 5
    while processes_in(where) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_in(where) == [], "a worker outlived its killed driver"

    finished = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    run = store.Run(store.find(tmp_path, "latest"))
    counts = counted(run.records)
    wanted = {
        (kind, item.case.id, process, 0): item.samples
        for item in run.plan
        for process in range(item.processes)
        for kind in ("save", "load")
    }
    assert counts == Counter(wanted)
    for earlier in seen:
        assert earlier <= counts, "a record was lost"
    assert len(seen) >= 3, "the driver was never killed in mid-run"
    assert run.damages == []
    assert not list(where.iterdir()), "the scratch directory was not cleaned"
    assert not run.jobs.exists()


def test_ctrl_c_ends_everything_and_says_how_to_go_on(tmp_path: Path, scratch: Path) -> None:
    where = scratch / "interrupted"
    where.mkdir()
    driver = start(command(tmp_path, where, *START))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not any(where.glob("*/saves/*")):
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=20)
    assert driver.returncode == 130, errors
    assert "ckptbench run --resume " in errors
    assert "Traceback" not in errors
    assert processes_in(where) == []
    assert not list(where.iterdir())


def test_a_run_of_another_machine_or_code_is_not_resumed(tmp_path: Path, scratch: Path) -> None:
    first = subprocess.run(
        command(tmp_path, scratch, *START), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert first.returncode == 0, first.stderr
    folder = store.find(tmp_path, "latest")
    manifest = json.loads((folder / "manifest.json").read_text())
    differing = {
        "machine": "cannot go on here, because this machine differs in machine",
        "ckptbench": "was begun by the code of ckptbench elsewhere, and this is ",
    }
    for name, message in differing.items():
        changed = manifest | {"commit": None, "dirty": None, name: "elsewhere"}
        (folder / "manifest.json").write_text(json.dumps(changed))
        again = subprocess.run(
            command(tmp_path, scratch, "--resume", folder.name),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert again.returncode == 2
        assert message in again.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 48 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(where)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


def test_a_full_disk_is_a_failed_row_and_the_run_goes_on(
    measure: Measure, small_disk: Path
) -> None:
    run = measure([faulty("fills-disk"), planned("buffered")], where=small_disk)
    row = run.row("double[fault=fills-disk]")
    assert (row.status, row.phase) == ("failed", "save")
    assert "No space left on device" in row.reason
    assert run.row("buffered").status == "ok"
    assert run.row("buffered").ceiling_direct is False, "a file system in memory has no direct I/O"
    assert run.row("buffered").load_cache in ("warm", "unknown"), "nothing is ever cold in memory"
    assert not list(small_disk.iterdir())


def test_a_worker_that_cannot_start_is_a_failed_row(measure: Measure) -> None:
    broken = planned("buffered")
    broken = replace(
        broken,
        case=replace(broken.case, method="broken", framework_path="adapters.raw.framework:Absent"),
    )
    run = measure([broken])
    assert (run.rows[0].status, run.rows[0].phase) == ("failed", "start")
    assert "has no attribute 'Absent'" in run.rows[0].reason


def test_an_interpreter_that_prints_rubbish_and_ends_is_a_failed_row(
    measure: Measure, tmp_path: Path
) -> None:
    from harness.driver import environments

    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\n"
        'case "$*" in *harness.worker*save*) echo "}{ rubbish"; exit 0;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    fake.chmod(0o755)
    original = environments.Environments.interpreter
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environments.Environments, "interpreter", lambda self, *a, **k: fake)
        run = measure([planned("buffered")])
    assert original is environments.Environments.interpreter
    assert (run.rows[0].status, run.rows[0].phase) == ("failed", "launch")
    assert run.rows[0].reason == "the process ended before its work was done: }{ rubbish"


def test_a_finished_worker_that_does_not_end_is_ended(measure: Measure) -> None:
    run = measure([faulty("holds-exit")])
    assert (run.rows[0].status, run.rows[0].verified, run.rows[0].reason) == ("ok", True, "")


def test_a_plan_survives_its_file(measure: Measure) -> None:
    run = measure([planned("buffered", processes=1)])
    assert [asdict(item) for item in run.run.plan] == [asdict(planned("buffered", processes=1))]
