"""From a job to a command line, for each way of starting ranks.

A launcher is a few lines that return an argv.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.run.errors import UsageError, nearest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class OpenMpi:
    """An Open MPI of the system's own: its mpirun, and its library, which the ranks have to load too."""

    mpirun: Path
    library: Path


@dataclass(frozen=True)
class Launch:
    """What to start: the worker's interpreter, the job, where its ranks write, and over how many nodes they are spread.

    `mpi` is the one that the user has named, where that is not the one of the interpreter's
    environment.
    """

    interpreter: Path
    job_file: Path
    folder: Path
    world: int
    nodes: int = 0
    mpi: OpenMpi | None = None

    @property
    def worker(self) -> list[str]:
        """The command of one rank."""
        return [str(self.interpreter), "-m", "harness.worker", str(self.job_file), str(self.folder)]


def local(launch: Launch) -> list[str]:
    """One rank, started directly."""
    return launch.worker


def mpirun(launch: Launch) -> list[str]:
    """Ranks under mpirun: all on this node, or over those of the Slurm job in which this runs, where srun starts its daemons."""
    # Without a number for each node, mpirun would fill all nodes of an allocation by turns, also
    # with the ranks of one machine.
    mapping = f"ppr:{ranks_per_node(launch.world, launch.nodes)}:node:oversubscribe"
    # a framework's threads use all processors, whatever a version of Open MPI binds by default
    unbound = ["--bind-to", "none"]
    return [_mpirun(launch), "-n", str(launch.world), "--map-by", mapping, *unbound, *launch.worker]


LAUNCHERS = {"local": local, "mpirun": mpirun, "slurm": mpirun}


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
    mpi: OpenMpi | None = None,
) -> dict[str, str]:
    """Return the worker's environment: the project in `root` importable, temporary files in the scratch directory.

    `shared_memory` is where Open MPI's ranks of one machine meet, so that it can be cleared when
    they were killed. `hash_seed` is that of Python's hashes of text; without one every process has
    another, whatever the user's own environment says. `mpi` is whose library the ranks load.
    """
    variables = dict(os.environ if base is None else base)
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(root), variables.get("PYTHONPATH", "")])
    )
    # else -m would look for the worker in the present directory before it looks in `root`
    variables["PYTHONSAFEPATH"] = "1"
    variables["TMPDIR"] = str(temporary)
    variables["PYTHONHASHSEED"] = "random" if hash_seed is None else str(hash_seed)
    if shared_memory is not None:
        variables |= {
            f"OMPI_MCA_btl_{name}_backing_directory": str(shared_memory) for name in ("sm", "vader")
        }  # of 5, of 4
    if mpi is not None:
        # mpirun of one Open MPI and ranks of another would be worlds of one each
        variables["MPI4PY_LIBMPI"] = str(mpi.library)
    # else a site's srun may give mpirun's daemons on other nodes none of this
    variables["SLURM_EXPORT_ENV"] = "ALL"
    if os.geteuid() == 0:  # mpirun refuses the superuser unless told twice
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


def open_mpi(mpirun: Path) -> OpenMpi:
    """Return the Open MPI to which an mpirun belongs. Raises UsageError where it belongs to none.

    Its library is the one that its ompi_info loads: distributions move it from where it was
    configured to be.
    """
    information = mpirun.with_name("ompi_info")
    if not (os.access(mpirun, os.X_OK) and os.access(information, os.X_OK)):
        raise UsageError(f"{mpirun} is no mpirun of an Open MPI, which has an ompi_info beside it")
    loaded = subprocess.run(
        ["ldd", str(information)], capture_output=True, text=True, check=False
    ).stdout
    library = re.search(r"=> (/.*/libmpi\.so\S*)", loaded)
    if library is None:
        raise UsageError(
            f"{information} loads no libmpi that can be found, so the ranks of {mpirun} cannot either"
        )
    return OpenMpi(mpirun, Path(library[1]))


def ranks_per_node(world: int, nodes: int) -> int:
    """The most ranks that a node gets; 0 nodes mean one machine."""
    return -(-world // max(1, nodes))


def out_of_sight(nodes: int) -> str | None:
    """Say why a tracer around the launcher would not see every rank, or None where it does."""
    return f"ranks on {nodes} nodes cannot be traced from one of them" if nodes > 1 else None


def _mpirun(launch: Launch) -> str:
    """The mpirun that the user has named, else the one beside the interpreter, whose ranks' library it is, else one on the path."""
    if launch.mpi is not None:
        return str(launch.mpi.mpirun)
    beside = launch.interpreter.parent / "mpirun"
    command = str(beside) if beside.exists() else shutil.which("mpirun")
    if command is None:
        raise UsageError(
            f"no mpirun beside {launch.interpreter} or on the path: a world of {launch.world} cannot be started"
        )
    return command


def _tied_to_parent(launcher: str) -> list[str]:
    """A prefix that ends the job when the driver is killed. mpirun is asked to end, so that it ends its ranks anywhere."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    return [setpriv, "--pdeathsig", "KILL" if launcher == "local" else "TERM", "--"]
