"""The command line of a job, for each way of starting ranks, and the environment of its processes.

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

from harness.run.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class OpenMpi:
    """The system's own Open MPI: its mpirun, and its library, which the ranks have to load too."""

    mpirun: Path
    library: Path


@dataclass(frozen=True)
class Launch:
    """The start of a job: the worker's interpreter, the job's file, and its ranks.

    The ranks write in `folder`. With `nodes`, they are spread over so many nodes. `mpi` is the Open
    MPI that the user has named, where it is not that of the interpreter's environment. `options`
    are those of the launcher that one job alone needs.
    """

    interpreter: Path
    job_file: Path
    folder: Path
    world: int
    nodes: int = 0
    mpi: OpenMpi | None = None
    options: tuple[str, ...] = ()
    # the arguments of the interpreter that start the ranks by a launcher of the framework's own,
    # which then takes the place of mpirun
    own: tuple[str, ...] = ()

    @property
    def worker(self) -> list[str]:
        """Return the command of one rank."""
        return [str(self.interpreter), "-m", "harness.worker", str(self.job_file), str(self.folder)]


def local(launch: Launch) -> list[str]:
    """Start one rank directly."""
    return launch.worker


def mpirun(launch: Launch) -> list[str]:
    """Start ranks under mpirun, all on this node or over the nodes of the present Slurm job.

    There mpirun starts its daemons with srun.
    """
    # Without a number for each node, mpirun would fill all nodes of an allocation by turns, also
    # with the ranks of one machine.
    mapping = f"ppr:{ranks_per_node(launch.world, launch.nodes)}:node:oversubscribe"
    # A framework's threads use all processors, whatever a version of Open MPI binds by default.
    unbound = ["--bind-to", "none"]
    ranks = ["-n", str(launch.world), "--map-by", mapping]
    return [
        mpirun_of(launch.interpreter, launch.mpi),
        *launch.options,
        *ranks,
        *unbound,
        *launch.worker,
    ]


def own(launch: Launch) -> list[str]:
    """Start ranks on this machine by the framework's own launcher."""
    arguments = [argument.format(ranks=launch.world) for argument in launch.own]
    return [str(launch.interpreter), *arguments, *launch.worker[1:]]


LAUNCHERS = {"local": local, "mpirun": mpirun, "slurm": mpirun}


def argv(launcher: str, launch: Launch, tracer: list[str]) -> list[str]:
    """Return the whole command, under `tracer` if there is one.

    It ends with this process where setpriv can tie it.
    """
    command = own(launch) if launch.own else LAUNCHERS[launcher](launch)
    return [*tied_to_parent(launcher), *tracer, *command]


def environment(
    temporary: Path,
    base: Mapping[str, str] | None = None,
    hash_seed: int | None = None,
    shared_memory: Path | None = None,
    root: Path = ROOT,
    mpi: OpenMpi | None = None,
    added: Path | None = None,
    threads: int | None = None,
) -> dict[str, str]:
    """Return the worker's environment: `base` or this process's own, with what the worker needs.

    The project in `root` comes first on Python's path. `added`, which holds adapters from outside,
    comes behind it. Temporary files go to `temporary`. `shared_memory` is a folder in which Open
    MPI's ranks of one machine meet, so that it can be cleared when they were killed. `hash_seed` is
    the seed of Python's text hashes. Without one, every process has another seed, also when the
    user's own environment fixes it. The ranks load the library of `mpi`. `threads` is with how many
    threads a rank computes, unless the user's own environment says it; by default as many as the
    framework wants.
    """
    variables = dict(os.environ if base is None else base)
    path = (root, added, variables.get("PYTHONPATH"))
    variables["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in path if folder)
    # Without it, -m looks for the worker in the present directory before it looks in `root`.
    variables["PYTHONSAFEPATH"] = "1"
    variables["TMPDIR"] = str(temporary)
    variables["PYTHONHASHSEED"] = "random" if hash_seed is None else str(hash_seed)
    if shared_memory is not None:
        # The component is called sm in Open MPI 5, and vader in Open MPI 4.
        variables["OMPI_MCA_btl_sm_backing_directory"] = str(shared_memory)
        variables["OMPI_MCA_btl_vader_backing_directory"] = str(shared_memory)
    if threads is not None:
        variables.setdefault("OMP_NUM_THREADS", str(threads))
    if mpi is not None:
        # With mpirun of one Open MPI and the library of another, each rank is a world of one.
        variables["MPI4PY_LIBMPI"] = str(mpi.library)
    # Without it, a site's srun may give mpirun's daemons on other nodes none of these variables.
    variables["SLURM_EXPORT_ENV"] = "ALL"
    if os.geteuid() == 0:
        # mpirun refuses the superuser unless both say that this is meant.
        variables["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
        variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return variables


def open_mpi(mpirun: Path) -> OpenMpi:
    """Return the Open MPI to which an mpirun belongs. Raise UsageError where it belongs to none.

    Its library is the one that its ompi_info loads, because distributions move the library away
    from the folder that Open MPI was configured with.
    """
    if not mpirun.exists():
        raise UsageError(f"--mpirun: there is no file {mpirun}")
    information = mpirun.with_name("ompi_info")
    if not os.access(information, os.X_OK):
        raise UsageError(
            f"{mpirun} does not look like Open MPI's mpirun, "
            "because there is no ompi_info beside it; name another one with --mpirun"
        )
    if not os.access(mpirun, os.X_OK):
        raise UsageError(f"{mpirun} is not a program that can be run")
    loaded = subprocess.run(
        ["ldd", str(information)], capture_output=True, text=True, check=False
    ).stdout
    library = re.search(r"=> (/.*/libmpi\.so\S*)", loaded)
    if library is None:
        raise UsageError(
            f"{information} loads no libmpi that can be found, "
            f"so the ranks of {mpirun} cannot load it either; install that Open MPI whole"
        )
    return OpenMpi(mpirun, Path(library[1]))


def ranks_per_node(world: int, nodes: int) -> int:
    """Return the largest number of ranks on a node, where 0 nodes mean one machine."""
    return -(-world // max(1, nodes))


def out_of_sight(nodes: int) -> str | None:
    """Return why a tracer around the launcher would not see every rank, or None where it does."""
    return f"ranks on {nodes} nodes cannot be traced from one of them" if nodes > 1 else None


def mpirun_of(interpreter: Path, mpi: OpenMpi | None = None) -> str:
    """Return the mpirun that the user has named, else the interpreter's, else one on the path.

    The one beside the interpreter belongs to the library that its ranks load. Raise UsageError
    where there is none.
    """
    if mpi is not None:
        return str(mpi.mpirun)
    beside = interpreter.parent / "mpirun"
    command = str(beside) if beside.exists() else shutil.which("mpirun")
    if command is None:
        raise UsageError(
            f"no mpirun beside {interpreter} or on the path: "
            "several ranks cannot be started; install Open MPI or give --mpirun"
        )
    return command


def tied_to_parent(launcher: str) -> list[str]:
    """Return a prefix that ends the job when the driver is killed, or none without setpriv.

    mpirun is asked to end, so that it ends its ranks on every node.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    signal = "KILL" if launcher == "local" else "TERM"
    return [setpriv, "--pdeathsig", signal, "--"]
