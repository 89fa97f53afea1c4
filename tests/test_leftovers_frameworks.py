"""A job of two ranks of any framework leaves nothing, and the rank that broke is named."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from conftest import ROOT
from test_leftovers import nothing_left
from test_leftovers_pytorch import only_row_of
from test_session import CKPTBENCH, processes_in, start

# The time until ranks that import and compile have saved, or until a job that hangs is ended.
WAIT_S = 120
HUNG_S = 30

pytestmark = pytest.mark.slow


@pytest.fixture
def where(scratch: Path, tmp_path: Path) -> Path:
    """Return a scratch directory of the test's own."""
    folder = scratch / tmp_path.name
    folder.mkdir()
    return folder


def job(
    framework: str, results: Path, where: Path, timeout_s: int = WAIT_S
) -> subprocess.Popen[str]:
    """Start a run of two ranks."""
    if not (ROOT / ".venvs" / framework / "bin" / "python").exists():
        pytest.skip(f"the environment of {framework} is not made")
    case = (
        "--framework",
        framework,
        "--workload",
        "resnet50",
        "--method",
        "default",
        "--world",
        "2",
    )
    places = ("--results", str(results), "--dir", str(where))
    return start([*CKPTBENCH, "run", "smoke", *case, "--timeout", str(timeout_s), *places])


def second_rank(driver: subprocess.Popen[str], where: Path) -> psutil.Process:
    """Return the process of rank 1, once the ranks have begun to save."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and driver.poll() is None:
        if any(where.glob("*/saves/*")):
            return next(process for process in processes_in(where) if _is_second(process))
        time.sleep(0.05)
    pytest.fail("nothing was saved")


def _is_second(process: psutil.Process) -> bool:
    return (
        "harness.worker" in process.cmdline()
        and process.environ().get("OMPI_COMM_WORLD_RANK") == "1"
    )


@pytest.mark.patient
@pytest.mark.parametrize("framework", ["chainer", "jax", "tensorflow"])
def test_a_killed_rank_is_named_and_leaves_nothing(
    framework: str, tmp_path: Path, where: Path
) -> None:
    with nothing_left(where):
        driver = job(framework, tmp_path, where)
        second_rank(driver, where).kill()
        _, errors = driver.communicate(timeout=WAIT_S)
        assert driver.returncode == 1, errors
    row = only_row_of(tmp_path)
    assert (row["status"], row["reason"]) == ("failed", "rank 1: killed by SIGKILL")


@pytest.mark.patient
def test_a_rank_that_stands_still_is_named_within_the_timeout_and_leaves_nothing(
    tmp_path: Path, where: Path
) -> None:
    with nothing_left(where):
        driver = job("chainer", tmp_path, where, HUNG_S)
        second_rank(driver, where).suspend()
        begin_s = time.monotonic()
        _, errors = driver.communicate(timeout=WAIT_S)
        assert driver.returncode == 1, errors
        assert HUNG_S - 5 < time.monotonic() - begin_s < HUNG_S + 30
    row = only_row_of(tmp_path)
    assert row["status"] == "failed"
    assert f"no progress for {HUNG_S} s" in row["reason"]


@pytest.mark.patient
def test_ctrl_c_leaves_nothing(tmp_path: Path, where: Path) -> None:
    with nothing_left(where):
        driver = job("jax", tmp_path, where)
        second_rank(driver, where)
        driver.send_signal(signal.SIGINT)
        _, errors = driver.communicate(timeout=WAIT_S)
        assert driver.returncode == 130, errors
