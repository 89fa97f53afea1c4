"""A job of PyTorch's dcp-async-tuned leaves nothing. The method writes from a daemon process."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ROOT
from test_leftovers import nothing_left
from test_session import CKPTBENCH, processes_in, start

PYTHON = ROOT / ".venvs" / "pytorch" / "bin" / "python"
# The time until ranks that import PyTorch have a daemon each, or until a job hangs.
WAIT_S = 120
END_S = 150  # the time until a job has ended
HUNG_S = 40  # longer than such ranks need to start beside other tests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="PyTorch's environment is not made"),
]


@pytest.fixture
def where(scratch: Path) -> Iterator[Path]:
    """Yield a scratch directory with a short name, because the daemons' sockets lie below it."""
    folder = Path(tempfile.mkdtemp(prefix="d-", dir=scratch))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def job(results: Path, where: Path, timeout_s: int = WAIT_S) -> subprocess.Popen[str]:
    """Start a run of two ranks, whose daemons start with the first save."""
    case = (
        "--framework",
        "pytorch",
        "--workload",
        "resnet50",
        "--method",
        "dcp-async-tuned",
        "--world",
        "2",
    )
    return start(
        [
            *CKPTBENCH,
            "run",
            "smoke",
            *case,
            "--timeout",
            str(timeout_s),
            "--results",
            str(results),
            "--dir",
            str(where),
        ]
    )


def daemons_in(where: Path) -> list[psutil.Process]:
    """Return a job's daemons: multiprocessing's children but for its trackers of resources."""
    return [process for process in processes_in(where) if _is_daemon(process)]


def _is_daemon(process: psutil.Process) -> bool:
    try:
        return "--multiprocessing-fork" in process.cmdline() and process.is_running()
    except psutil.Error:
        # It has ended in the meantime.
        return False


def until_daemons_run(driver: subprocess.Popen[str], where: Path) -> list[psutil.Process]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and driver.poll() is None:
        found = daemons_in(where)
        if len(found) == 2:
            return found
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    pytest.fail(f"no two daemons were seen: {driver.communicate(timeout=END_S)[1]}")


def only_row_of(results: Path) -> dict[str, Any]:
    argv = [*CKPTBENCH, "show", "latest", "--results", str(results), "--format", "json"]
    shown = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (row,) = json.loads(shown)
    return dict(row)


@pytest.mark.patient
def test_a_normal_end_leaves_nothing(tmp_path: Path, where: Path) -> None:
    with nothing_left(where):
        driver = job(tmp_path, where)
        until_daemons_run(driver, where)
        _, errors = driver.communicate(timeout=END_S)
        assert driver.returncode == 0, errors
    assert only_row_of(tmp_path)["status"] == "ok"


@pytest.mark.patient
@pytest.mark.parametrize(
    ("stop", "reason"),
    # Where both hang at the same place, nobody knows which of them the other waits for.
    [
        (psutil.Process.kill, "rank {rank}: killed by SIGKILL"),
        (psutil.Process.suspend, f"rank [01]: no progress for {HUNG_S} s"),
    ],
    ids=["killed", "suspended"],
)
def test_a_rank_that_stops_leaves_nothing(
    tmp_path: Path, where: Path, stop: Callable[[psutil.Process], None], reason: str
) -> None:
    with nothing_left(where):
        driver = job(tmp_path, where, HUNG_S)
        rank = until_daemons_run(driver, where)[0].parent()
        assert rank is not None
        number = rank.environ()["OMPI_COMM_WORLD_RANK"]
        stop(rank)
        _, errors = driver.communicate(timeout=END_S)
        assert driver.returncode == 1, errors
    row = only_row_of(tmp_path)
    assert row["status"] == "failed"
    assert re.match(reason.format(rank=number), row["reason"]), row["reason"]


def test_ctrl_c_leaves_nothing(tmp_path: Path, where: Path) -> None:
    with nothing_left(where):
        driver = job(tmp_path, where)
        until_daemons_run(driver, where)
        driver.send_signal(signal.SIGINT)
        _, errors = driver.communicate(timeout=END_S)
        assert driver.returncode == 130, errors
