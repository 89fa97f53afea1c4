"""Slurm: a whole run as one job, because a run should wait in a queue once.

The job's script resumes the run on the first node of its allocation, where the driver measures as
it does everywhere. This side writes the script, submits it, watches the job and cancels it. It uses
Slurm's commands and no library: every site has those.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from harness.driver import tables
from harness.driver.launch import ROOT, ranks_per_node
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase
from harness.run.store import Run

SCRIPT = "slurm.sh"
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
_COMMANDS = ("sbatch", "scontrol", "scancel")
_COMMAND_TIMEOUT_S = 120  # a controller under load answers late
# between a job's first signal and its last: Slurm's KillWait, 30 s as it comes, and an epilog
_END_TIMEOUT_S = 120
_CANCEL_AGAIN_S = 30.0
_SLOWEST_LOOK_S = 10.0
_SHOWN_LINES = 12


class Refused(UsageError):
    """Slurm does not take the job."""


class Unanswered(UsageError):
    """Slurm has not said whether it takes the job."""


class NotCancelled(UsageError):
    """A job that was to end has not."""


class Site(tables.Table):
    """What a site wants to be told with every job.

    `extra_sbatch` holds options as sbatch takes them, such as "--exclusive".
    """

    account: str | None = None
    partition: str | None = None
    time: str | None = None
    gpus_per_node: int | None = Field(default=None, ge=1)
    modules: tuple[str, ...] = Field(default=(), strict=False)
    extra_sbatch: tuple[str, ...] = Field(default=(), strict=False)


@dataclass(frozen=True)
class State:
    """What Slurm says of a job: the state's name, why it waits or ended, on which nodes it is, and its exit status."""

    name: str
    reason: str = ""
    nodes: str = ""
    exit_status: str = ""

    @property
    def ended(self) -> bool:
        """Whether it is a last state."""
        return self.name not in _PENDING | _AT_WORK

    def __str__(self) -> str:
        telling = {"RUNNING": self.nodes, "FAILED": f"exit status {self.exit_status}"}.get(
            self.name, self.reason
        )
        return f"{self.name} ({telling})" if telling else self.name


GONE = State("unknown to Slurm")  # it forgets a job some minutes after its end


@dataclass(frozen=True)
class Job:
    """A job in the queue or at work."""

    id: str

    def state(self) -> State | None:
        """Return the job's state; None where the controller does not answer now."""
        done = _run("scontrol", "show", "job", "--oneliner", self.id)
        if done.returncode:
            return GONE if "Invalid job id" in done.stderr else None
        told = dict(re.findall(r"(\w+)=(\S*)", done.stdout))
        reason = "" if told["Reason"] == "None" else told["Reason"]
        return State(
            told["JobState"], reason, told.get("NodeList", ""), told["ExitCode"].partition(":")[0]
        )

    def watch(self, on_look: Callable[[State], None], limit_s: float | None = None) -> State:
        """Return the state in which the job ended, or its last one after `limit_s`; `on_look` gets each one seen.

        The longer a job lasts, the more rarely it is looked at: the controller serves a whole site.
        """
        began, state = time.monotonic(), State("PENDING")
        while not state.ended and (limit_s is None or time.monotonic() - began < limit_s):
            state = self.state() or state
            on_look(state)
            if not state.ended:
                time.sleep(min(_SLOWEST_LOOK_S, 0.5 + (time.monotonic() - began) / 10))
        return state

    def cancel(self) -> None:
        """Cancel the job and return once it has ended, with everything that it had started.

        Raises NotCancelled.
        """
        deadline, state = time.monotonic() + _END_TIMEOUT_S, State("PENDING")
        with contextlib.suppress(KeyboardInterrupt):  # a second one: its user does not want to wait
            while not state.ended and time.monotonic() < deadline:
                _run("scancel", self.id)
                state = self.watch(lambda state: None, _CANCEL_AGAIN_S)
        if not state.ended:
            raise NotCancelled(
                f"Slurm job {self.id} could not be cancelled and may go on: scancel {self.id}"
            )


@dataclass(frozen=True)
class Request:
    """What is asked of Slurm: a job that measures a plan, on this site."""

    plan: Sequence[PlannedCase]
    site: Site
    timeout_s: float | None = None

    def script(self, folder: Path) -> str:
        """Return the batch script that measures the run in `folder`."""
        # a login shell is where `module` is defined
        shell = "#!/bin/bash -l" if self.site.modules else "#!/bin/bash"
        lines = [
            shell,
            *(
                f"#SBATCH {option}"
                for option in [*self._options(folder.absolute()), *self.site.extra_sbatch]
            ),
            "set -e",
            *(f"module load {shlex.quote(module)}" for module in self.site.modules),
            f'export PYTHONPATH={shlex.quote(str(ROOT))}"${{PYTHONPATH:+:$PYTHONPATH}}"',
            f"exec {shlex.join(self._command(folder.absolute()))}",
        ]
        return "\n".join(lines) + "\n"

    def failure(self, run: Run, job: Job, state: State) -> str:
        """Return what there is to say of a job that ended before its run was complete."""
        output = _output_path(run.folder, job.id)
        return (
            f"Slurm job {job.id} ended as {state} before the run was complete; its last words, from {output}:\n"
            f"{_last_words(output)}\n"
            f"go on with: ckptbench run --resume {shlex.quote(run.name)}"
        )

    def _command(self, folder: Path) -> list[str]:
        timeout = [] if self.timeout_s is None else ["--timeout", str(self.timeout_s)]
        return [sys.executable, "-m", "harness.cli", "run", "--resume", str(folder), *timeout]

    def _options(self, folder: Path) -> list[str]:
        per_node = max(ranks_per_node(item.case.world, item.case.nodes) for item in self.plan)
        on_gpus = any(item.case.device == "cuda" for item in self.plan)
        values = {
            "job-name": JOB_NAME,
            "account": self.site.account,
            "partition": self.site.partition,
            "time": self.site.time,
            "nodes": _nodes(self.plan),
            "ntasks-per-node": per_node,
            "gpus-per-node": (self.site.gpus_per_node or per_node) if on_gpus else None,
            "chdir": Path.cwd(),
            "output": str(_output_path(folder, "%j")),
        }
        named = [
            shlex.quote(f"--{name}={value}") for name, value in values.items() if value is not None
        ]
        # Slurm would begin anew on other nodes, where the run is refused
        return [*named, "--no-requeue"]


def read_site(path: Path | None) -> Site:
    """Return the site file at `path`, or the user's own, which need not be there."""
    if path is None and not own_site_file().exists():
        return Site()
    return tables.read(path or own_site_file(), Site)


def own_site_file() -> Path:
    """Where the user's own site file is looked for."""
    return (
        Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        / "ckptbench"
        / "site.toml"
    )


def is_launcher(plan: Sequence[PlannedCase]) -> bool:
    """Whether the plan's ranks are started in a Slurm job."""
    return any(item.case.launcher == "slurm" for item in plan)


def spread(plan: Sequence[PlannedCase], nodes: int) -> list[PlannedCase]:
    """Return the plan with the ranks of every case spread evenly over `nodes`.

    A single rank stays on the first one.
    """
    if not is_launcher(plan):
        return list(plan)
    if nodes < 1:
        raise UsageError(f"--nodes is a number from 1 on, not {nodes}")
    for world in sorted({item.case.world for item in plan} - {1}):
        if world % nodes:
            raise UsageError(
                f"a world of {world} cannot be spread evenly over {nodes} nodes: --world takes multiples of {nodes} here"
            )
    if nodes > 1 and all(item.case.world == 1 for item in plan):
        raise UsageError(
            f"every case has one rank, which needs no {nodes} nodes: name larger worlds with --world"
        )
    return [
        replace(item, case=replace(item.case, nodes=nodes)) if item.case.world > 1 else item
        for item in plan
    ]


def require_a_node() -> None:
    """Raise UsageError in a shell that holds a Slurm job and is on none of its nodes.

    Under salloc the shell stays where it was: what is no rank of mpirun would be measured there,
    and not on the job's nodes.
    """
    if "SLURM_JOB_ID" in os.environ and "SLURMD_NODENAME" not in os.environ:
        raise UsageError(
            "this shell holds a Slurm job and is on none of its nodes: start the run with `srun --overlap -N1 -n1`, or in a script "
            "for sbatch"
        )


def is_outside(plan: Sequence[PlannedCase]) -> bool:
    """Whether the plan is to be measured in a Slurm job, and this is none.

    Raises UsageError in a job that is too small, or beside its nodes.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return is_launcher(plan)
    require_a_node()
    wanted, held = _nodes(plan), int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    if wanted > held:
        raise UsageError(
            f"the run wants {wanted} nodes, and the Slurm job in which this runs has {held}"
        )
    return False


def require_commands() -> None:
    """Raise UsageError where Slurm's commands are missing."""
    missing = [command for command in _COMMANDS if shutil.which(command) is None]
    if missing:
        raise UsageError(
            f"launcher slurm needs Slurm's commands, and on the path there is no {', '.join(missing)}"
        )


@contextlib.contextmanager
def submitted(path: Path) -> Iterator[Job]:
    """Submit a script, and cancel the job where the block is left by an exception.

    Raises Refused, Unanswered and NotCancelled.
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


def _nodes(plan: Sequence[PlannedCase]) -> int:
    return max(1, *(item.case.nodes for item in plan))


def _output_path(folder: Path, job: str) -> Path:
    return folder / f"slurm-{job}.out"


def _last_words(output: Path) -> str:
    if not output.exists():
        return "(it has left no output)"
    lines = [
        line.rstrip() for line in output.read_text(errors="replace").splitlines() if line.strip()
    ]
    return "\n".join(lines[-_SHOWN_LINES:])


def _submit(path: Path) -> Job:
    done = _run("sbatch", "--parsable", str(path))
    # sbatch says so of the controller, and `_run` of sbatch
    if done.returncode and "timed out" in done.stderr:
        raise Unanswered(
            f"Slurm has not answered: the job may be in the queue (squeue --name={JOB_NAME} --me). If it is not, "
            f"go on with: ckptbench run --resume {shlex.quote(path.parent.name)}"
        )
    if done.returncode:
        lines = [
            line.removeprefix("sbatch: ").removeprefix("error: ")
            for line in done.stderr.splitlines()
        ]
        raise Refused(f"Slurm refuses the job: {'; '.join(lines)}")
    return Job(done.stdout.strip().partition(";")[0])  # a cluster's name may follow


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands in a session of its own: Ctrl-C is for this process, which then has to cancel."""
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
    """Collect signals instead of acting on them: between a submission and its answer there is a job that nobody knows yet."""
    collected: list[int] = []
    # nohup ignores one
    numbers = [number for number in INTERRUPTIONS if signal.getsignal(number) != signal.SIG_IGN]
    before = {
        number: signal.signal(number, lambda received, _: collected.append(received))
        for number in numbers
    }
    try:
        yield collected
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
