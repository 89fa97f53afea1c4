"""A Slurm job, from its submission to its end: submitted, watched and cancelled.

Slurm's own waiting commands do not replace this (tried with Slurm 22.05). `sbatch --wait` says
nothing about a job in the queue, and leaves the job at work when it is interrupted itself. A job
under `salloc … srun` waits for an unknown reason. When salloc is interrupted, it returns while the
job's processes are still ending. When somebody else cancels the job, salloc only says "revoked". So
the job's state is asked for in any case: while it waits, after a cancellation until it has ended,
and for the reason of its end.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.run.errors import UsageError
from harness.run.stored import run_argument

JOB_NAME = "ckptbench"
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PENDING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    }
)
_AT_WORK = frozenset(
    {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
)
_COMMAND_TIMEOUT_S = 120  # a controller under load answers late
# A cancelled job ends after Slurm's KillWait, which is 30 s by default, and after an epilog.
_END_TIMEOUT_S = 120
_CANCEL_AGAIN_S = 30.0
_SLOWEST_LOOK_S = 10.0


class Refused(UsageError):
    """Slurm does not take the job."""


class Unanswered(UsageError):
    """Slurm has not said whether it takes the job."""


class NotCancelled(UsageError):
    """A job that was cancelled has not ended."""


@dataclass(frozen=True)
class State:
    """The state of a job: its name, the reason for waiting or ending, the nodes and exit status."""

    name: str
    reason: str = ""
    nodes: str = ""
    exit_status: str = ""

    @property
    def ended(self) -> bool:
        """Return whether the job neither waits nor works any more."""
        return self.name not in _PENDING | _AT_WORK

    def __str__(self) -> str:
        detail = self.reason
        if self.name == "RUNNING":
            detail = self.nodes
        elif self.name == "FAILED":
            detail = f"exit status {self.exit_status}"
        return f"{self.name} ({detail})" if detail else self.name


GONE = State("unknown to Slurm")
"""The state of a job that Slurm has forgotten, as it does some minutes after the end."""


@dataclass(frozen=True)
class Job:
    """A job in the queue or at work."""

    id: str

    def state(self) -> State | None:
        """Return the job's state, or None where the controller does not answer now."""
        done = _run("scontrol", "show", "job", "--oneliner", self.id)
        if done.returncode:
            return GONE if "Invalid job id" in done.stderr else None
        values = dict(re.findall(r"(\w+)=(\S*)", done.stdout))
        # The exit code reads "status:signal".
        exit_status, _, _ = values["ExitCode"].partition(":")
        return State(
            name=values["JobState"],
            reason="" if values["Reason"] == "None" else values["Reason"],
            nodes=values.get("NodeList", ""),
            exit_status=exit_status,
        )

    def watch(self, on_look: Callable[[State], None], limit_s: float | None = None) -> State:
        """Return the state in which the job ended, or its present one after `limit_s`.

        `on_look` gets each state seen. A long job is looked at more rarely, because the controller
        serves a whole site.
        """
        began_s = time.monotonic()
        state = State("PENDING")
        while not state.ended and (limit_s is None or time.monotonic() - began_s < limit_s):
            state = self.state() or state
            on_look(state)
            if not state.ended:
                waited_s = time.monotonic() - began_s
                time.sleep(min(_SLOWEST_LOOK_S, 0.5 + waited_s / 10))
        return state

    def cancel(self) -> None:
        """Cancel the job, and return once it has ended with everything that it had started.

        Raise NotCancelled where it goes on.
        """
        deadline = time.monotonic() + _END_TIMEOUT_S
        state = State("PENDING")
        # A user who presses Ctrl-C again does not want to wait.
        with contextlib.suppress(KeyboardInterrupt):
            while not state.ended and time.monotonic() < deadline:
                _run("scancel", self.id)
                state = self.watch(lambda state: None, _CANCEL_AGAIN_S)
        if not state.ended:
            raise NotCancelled(
                f"Slurm job {self.id} could not be cancelled and may go on: scancel {self.id}"
            )


@contextlib.contextmanager
def submitted(path: Path) -> Iterator[Job]:
    """Submit a script, and cancel the job where an exception ends the block.

    Raise Refused, Unanswered or NotCancelled.
    """
    with _interruptions_held() as interrupted:
        job = _submit(path)
    try:
        if interrupted:
            raise KeyboardInterrupt
        yield job
    except BaseException:
        job.cancel()
        raise


def _submit(path: Path) -> Job:
    done = _run("sbatch", "--parsable", str(path))
    # sbatch says "timed out" of the controller, and `_run` says it of sbatch.
    if done.returncode and "timed out" in done.stderr:
        raise Unanswered(
            "Slurm has not answered: the job may be in the queue "
            f"(squeue --name={JOB_NAME} --me). If it is not, "
            f"go on with: ckptbench run --resume {run_argument(path.parent)}"
        )
    if done.returncode:
        lines = done.stderr.splitlines()
        reasons = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines]
        raise Refused(f"Slurm refuses the job: {'; '.join(reasons)}")
    # The name of a cluster may follow.
    job_id, _, _ = done.stdout.strip().partition(";")
    return Job(job_id)


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands.

    It has a session of its own, so that Ctrl-C reaches this process alone, which then cancels.
    """
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, "", str(error))


@contextlib.contextmanager
def _interruptions_held() -> Iterator[list[int]]:
    """Collect signals within the block instead of acting on them.

    Between a submission and its answer there is a job that nobody could cancel, because nobody
    knows its number yet.
    """
    collected: list[int] = []

    def collect(number: int, _: object) -> None:
        collected.append(number)

    # nohup has SIGHUP ignored, and that must stay so.
    heeded = [number for number in INTERRUPTIONS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, collect) for number in heeded}
    try:
        yield collected
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
