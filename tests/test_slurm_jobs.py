"""The states of a Slurm job, and the answers of Slurm's commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_runs import SMOKE, ckptbench, site_file

from harness.driver import slurm_jobs
from harness.driver.slurm_jobs import State
from harness.run import store

pytest_plugins = ["shared_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nobodys_site_file")]


@pytest.mark.parametrize(
    ("state", "text", "ended"),
    [
        (State("PENDING", reason="Resources"), "PENDING (Resources)", False),
        (State("RUNNING", nodes="n[1-2]"), "RUNNING (n[1-2])", False),
        (State("COMPLETING"), "COMPLETING", False),
        (State("TIMEOUT", reason="TimeLimit"), "TIMEOUT (TimeLimit)", True),
        (
            State("FAILED", reason="NonZeroExitCode", exit_status="2"),
            "FAILED (exit status 2)",
            True,
        ),
        (State("NODE_FAIL"), "NODE_FAIL", True),
        (slurm_jobs.GONE, "unknown to Slurm", True),
    ],
)
def test_a_jobs_state_says_what_there_is_to_know(state: State, text: str, ended: bool) -> None:
    assert (str(state), state.ended) == (text, ended)


RUNNING = "echo JobId=17 JobState=RUNNING Reason=None NodeList=n1 ExitCode=0:0"


CANCELLED = "echo JobId=17 JobState=CANCELLED Reason=None NodeList=n1 ExitCode=0:15"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts commands with Slurm's names first on the path.

    Nobody waits long for them.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, value in {
        "_COMMAND_TIMEOUT_S": 1.0,
        "_END_TIMEOUT_S": 3.0,
        "_CANCEL_AGAIN_S": 0.1,
    }.items():
        monkeypatch.setattr(slurm_jobs, name, value)

    def put(**scripts: str) -> None:
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return put


def interrupted(script: Path) -> None:
    with slurm_jobs.submitted(script):
        raise KeyboardInterrupt


def test_a_job_that_cannot_be_cancelled_is_named(
    commands: Callable[..., None], tmp_path: Path
) -> None:
    commands(sbatch="echo 17", scontrol=RUNNING, scancel=f"echo once >> {tmp_path}/asked; exit 1")
    with pytest.raises(
        slurm_jobs.NotCancelled,
        match="^Slurm job 17 could not be cancelled and may go on: scancel 17$",
    ):
        interrupted(tmp_path / "slurm.sh")
    assert len((tmp_path / "asked").read_text().splitlines()) > 1, "it is tried again"


def test_a_cancellation_that_fails_at_first_is_tried_again(
    commands: Callable[..., None], tmp_path: Path
) -> None:
    first, done = tmp_path / "first", tmp_path / "done"
    fails_once = f"test -e {first} && touch {done} && exit; touch {first}; exit 1"
    commands(
        sbatch="echo 17", scancel=fails_once, scontrol=f"test -e {done} && {CANCELLED} || {RUNNING}"
    )
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "slurm.sh")
    assert done.exists()


TIMED_OUT = (
    "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2"
    "; exit 1"
)


@pytest.mark.parametrize(
    "sbatch", ["exec sleep 30", TIMED_OUT], ids=["sbatch hangs", "the controller hangs"]
)
def test_a_job_that_may_be_queued_is_not_called_refused(
    commands: Callable[..., None], sbatch: str, tmp_path: Path
) -> None:
    commands(sbatch=sbatch)
    with pytest.raises(
        slurm_jobs.Unanswered, match="^Slurm has not answered: the job may be in the queue"
    ) as caught:
        interrupted(tmp_path / "my run" / "slurm.sh")
    assert str(caught.value).endswith(f"go on with: ckptbench run --resume '{tmp_path}/my run'")


def test_the_run_of_a_job_that_may_be_queued_is_kept(
    commands: Callable[..., None], tmp_path: Path
) -> None:
    commands(sbatch=TIMED_OUT, scontrol=RUNNING, scancel="true")
    site = site_file(tmp_path, 'account = "lab"')
    said = ["--summary-above", "8", "--timeout", "60", "--site", str(site)]
    done = ckptbench("run", *SMOKE, *said, "--results", str(tmp_path / "results"))
    assert (done.returncode, "the job may be in the queue" in done.stderr) == (2, True), done.stderr
    run = store.Run(store.find(tmp_path / "results", "latest"))
    assert run.settings == store.Settings(summary_above=8, timeout_s=60.0, site=str(site)), (
        "what the job's resumed run will go by"
    )
    again = ckptbench(
        "run", "--resume", run.name, "--dry-run", "--results", str(tmp_path / "results")
    )
    assert ("#SBATCH --account=lab" in again.stdout, "--timeout 60.0" in again.stdout) == (
        True,
        True,
    ), again.stderr
