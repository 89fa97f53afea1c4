"""A whole run as one Slurm job, because a run should wait in a queue once.

The job's script resumes the run on the first node of its allocation, where the driver measures as
it does everywhere. This module writes the script with the site's options; `slurm_jobs` submits it.
Both use Slurm's commands and no library, because every site has the commands.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from harness.driver import tables
from harness.driver.launch import ROOT, ranks_per_node
from harness.driver.paths import expanded
from harness.driver.slurm_jobs import JOB_NAME, Job, State
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase
from harness.run.store import Run
from harness.run.stored import run_argument

SCRIPT = "slurm.sh"
_COMMANDS = ("sbatch", "scontrol", "scancel")
_SHOWN_LINES = 12


class Site(tables.Table):
    """The options that a site wants with every job.

    `extra_sbatch` holds options as sbatch takes them, such as "--exclusive".
    """

    account: str | None = None
    partition: str | None = None
    time: str | None = None
    gpus_per_node: int | None = Field(default=None, ge=1)
    modules: tuple[str, ...] = Field(default=(), strict=False)
    extra_sbatch: tuple[str, ...] = Field(default=(), strict=False)


@dataclass(frozen=True)
class Request:
    """A request for a job that measures a plan, with the options of a site."""

    plan: Sequence[PlannedCase]
    site: Site
    timeout_s: float | None = None

    def script(self, folder: Path) -> str:
        """Return the batch script that measures the run in `folder`."""
        # `module` is defined in a login shell.
        shell = "#!/bin/bash -l" if self.site.modules else "#!/bin/bash"
        options = [*self._options(folder.absolute()), *self.site.extra_sbatch]
        lines = [
            shell,
            *(f"#SBATCH {option}" for option in options),
            "set -e",
            *(f"module load {shlex.quote(module)}" for module in self.site.modules),
            f'export PYTHONPATH={shlex.quote(str(ROOT))}"${{PYTHONPATH:+:$PYTHONPATH}}"',
            f"exec {shlex.join(self._command(folder.absolute()))}",
        ]
        return "\n".join(lines) + "\n"

    def failure(self, run: Run, job: Job, state: State) -> str:
        """Return the message about a job that ended before its run was complete."""
        output = _output_path(run.folder, job.id)
        return (
            f"Slurm job {job.id} ended as {state} before the run was complete; "
            f"its last words, from {output}:\n"
            f"{_last_words(output)}\n"
            f"go on with: ckptbench run --resume {run_argument(run.folder)}"
        )

    def _command(self, folder: Path) -> list[str]:
        timeout = [] if self.timeout_s is None else ["--timeout", str(self.timeout_s)]
        return [sys.executable, "-m", "harness.cli", "run", "--resume", str(folder), *timeout]

    def _options(self, folder: Path) -> list[str]:
        cases = [planned.case for planned in self.plan]
        per_node = max(ranks_per_node(case.world, case.nodes) for case in cases)
        on_gpus = any(case.device == "cuda" for case in cases)
        gpus_per_node = self.site.gpus_per_node or per_node
        values = {
            "job-name": JOB_NAME,
            "account": self.site.account,
            "partition": self.site.partition,
            "time": self.site.time,
            "nodes": _nodes(self.plan),
            "ntasks-per-node": per_node,
            "gpus-per-node": gpus_per_node if on_gpus else None,
            "chdir": Path.cwd(),
            "output": str(_output_path(folder, "%j")),
        }
        options = [
            shlex.quote(f"--{name}={value}") for name, value in values.items() if value is not None
        ]
        # Slurm would start a requeued job on other nodes, where the run is refused.
        return [*options, "--no-requeue"]


def read_site(path: Path | None) -> Site:
    """Return the options in the site file at `path`, else those in the user's own.

    Without any file there are no options. Raise UsageError for a file that is not one.
    """
    if path is None and not own_site_file().exists():
        return Site()
    return tables.read(path or own_site_file(), Site)


def own_site_file() -> Path:
    """Return the path of the user's own site file, which need not be there."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    # A user without a home folder has no such file.
    return expanded(configuration) / "ckptbench" / "site.toml"


def starts_ranks(plan: Sequence[PlannedCase]) -> bool:
    """Return whether the plan's ranks are started in a Slurm job."""
    return any(planned.case.launcher == "slurm" for planned in plan)


def spread(plan: Sequence[PlannedCase], nodes: int) -> list[PlannedCase]:
    """Return the plan with the ranks of every case spread evenly over `nodes`.

    A single rank stays on the first node. Raise UsageError where ranks cannot be spread so.
    """
    if not starts_ranks(plan):
        return list(plan)
    if nodes < 1:
        raise UsageError(f"--nodes is a number from 1 on, not {nodes}")
    larger_worlds = sorted({planned.case.world for planned in plan} - {1})
    for world in larger_worlds:
        if world % nodes:
            raise UsageError(
                f"a world of {world} cannot be spread evenly over {nodes} nodes: "
                f"--world takes multiples of {nodes} here"
            )
    if nodes > 1 and not larger_worlds:
        raise UsageError(
            f"every case has one rank, which needs no {nodes} nodes: "
            "name larger worlds with --world"
        )
    return [_spread(planned, nodes) for planned in plan]


def _spread(planned: PlannedCase, nodes: int) -> PlannedCase:
    if planned.case.world == 1:
        return planned
    return replace(planned, case=replace(planned.case, nodes=nodes))


def require_a_node() -> None:
    """Raise UsageError in a shell that holds a Slurm job and is on none of its nodes.

    The shell of salloc stays where it was. A single rank would be measured there, and not on a node
    of the job.
    """
    if "SLURM_JOB_ID" in os.environ and "SLURMD_NODENAME" not in os.environ:
        raise UsageError(
            "this shell holds a Slurm job and is on none of its nodes: "
            "start the run with `srun --overlap -N1 -n1`, or in a script for sbatch"
        )


def is_outside(plan: Sequence[PlannedCase]) -> bool:
    """Return whether the plan needs a Slurm job and this process is in none.

    Raise UsageError in a job with too few nodes, and in a shell that is on none of them.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return starts_ranks(plan)
    require_a_node()
    wanted = _nodes(plan)
    held = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    if wanted > held:
        raise UsageError(
            f"the run wants {wanted} nodes, and the Slurm job in which this runs has {held}; "
            "ask salloc for more nodes, or give --nodes"
        )
    return False


def require_commands() -> None:
    """Raise UsageError where Slurm's commands are missing."""
    missing = [command for command in _COMMANDS if shutil.which(command) is None]
    if missing:
        raise UsageError(
            "launcher slurm needs Slurm's commands, "
            f"and on the path there is no {', '.join(missing)}"
        )


def _nodes(plan: Sequence[PlannedCase]) -> int:
    return max(1, *(planned.case.nodes for planned in plan))


def _output_path(folder: Path, job: str) -> Path:
    return folder / f"slurm-{job}.out"


def _last_words(output: Path) -> str:
    if not output.exists():
        return "(it has left no output)"
    lines = output.read_text(errors="replace").splitlines()
    with_text = [line.rstrip() for line in lines if line.strip()]
    return "\n".join(with_text[-_SHOWN_LINES:])
