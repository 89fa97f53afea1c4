"""From a job to a command line, for each way of starting ranks. A launcher is a few lines that return an argv."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.driver.errors import UsageError, nearest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Launch:
    """What to start: the worker's interpreter, the job, where its ranks write, and over how many nodes they are spread."""

    interpreter: Path
    job_file: Path
    folder: Path
    world: int
    nodes: int = 0

    @property
    def worker(self) -> list[str]:
        """The command of one rank."""
        return [str(self.interpreter), "-m", "harness.worker", str(self.job_file), str(self.folder)]


def local(launch: Launch) -> list[str]:
    """One rank, started directly."""
    return launch.worker


def mpirun(launch: Launch) -> list[str]:
    """Ranks of one machine under mpirun."""
    return [_mpirun(launch), "-n", str(launch.world), "--oversubscribe", *launch.worker]


def slurm(launch: Launch) -> list[str]:
    """Ranks over the nodes of the Slurm job in which this driver runs, under mpirun, which starts its daemons with srun."""
    mapping = f"ppr:{ranks_per_node(launch.world, launch.nodes)}:node:oversubscribe"
    return [_mpirun(launch), "-n", str(launch.world), "--map-by", mapping, *launch.worker]


LAUNCHERS = {"local": local, "mpirun": mpirun, "slurm": slurm}


def argv(launcher: str, launch: Launch, tracer: list[str]) -> list[str]:
    """Return the whole command, under `tracer` where that is not empty, tied to the life of this process where it can be."""
    if launcher not in LAUNCHERS:
        raise nearest("launcher", launcher, LAUNCHERS)
    return [*_tied_to_parent(launcher), *tracer, *LAUNCHERS[launcher](launch)]


def environment(
    temporary: Path,
    base: Mapping[str, str] | None = None,
    hash_seed: int | None = None,
    shared_memory: Path | None = None,
    root: Path = ROOT,
) -> dict[str, str]:
    """Return the worker's environment: the project in `root` importable, temporary files in the scratch directory.

    `shared_memory` is where Open MPI's ranks of one machine meet, so that it can be cleared when they were killed. `hash_seed` is
    that of Python's hashes of text; without one every process has another, whatever the user's own environment says.
    """
    variables = dict(os.environ if base is None else base)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), variables.get("PYTHONPATH", "")]))
    variables["PYTHONSAFEPATH"] = "1"  # else -m would look for the worker in the present directory before it looks in `root`
    variables["TMPDIR"] = str(temporary)
    variables["PYTHONHASHSEED"] = "random" if hash_seed is None else str(hash_seed)
    if shared_memory is not None:
        variables["OMPI_MCA_btl_sm_backing_directory"] = str(shared_memory)
    variables["SLURM_EXPORT_ENV"] = "ALL"  # else a site's srun may give mpirun's daemons on other nodes none of this
    if os.geteuid() == 0:  # mpirun refuses the superuser unless told twice
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


def ranks_per_node(world: int, nodes: int) -> int:
    """The most ranks that a node gets; 0 nodes mean one machine."""
    return -(-world // max(1, nodes))


def out_of_sight(nodes: int) -> str | None:
    """Say why a tracer around the launcher would not see every rank, or None where it does."""
    return f"ranks on {nodes} nodes cannot be traced from one of them" if nodes > 1 else None


def _mpirun(launch: Launch) -> str:
    """The mpirun beside the interpreter, whose ranks' library it is, else the one on the path."""
    beside = launch.interpreter.parent / "mpirun"
    command = str(beside) if beside.exists() else shutil.which("mpirun")
    if command is None:
        raise UsageError(f"no mpirun beside {launch.interpreter} or on the path: a world of {launch.world} cannot be started")
    return command


def _tied_to_parent(launcher: str) -> list[str]:
    """A prefix that ends the job when the driver is killed. mpirun is asked to end, so that it ends its ranks anywhere."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    return [setpriv, "--pdeathsig", "KILL" if launcher == "local" else "TERM", "--"]
