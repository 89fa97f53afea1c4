"""A Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd.

It needs Debian's packages and no systemd. All its files lie in one folder, and it listens on ports
of its own. Stopping it ends every process that it started.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "scontrol", "scancel", "sinfo", "squeue", "srun")
PARTITION = "bench"
NODES = ("ckptn1", "ckptn2")
# The folders of the daemons, which a user's PATH need not have.
_SYSTEM_PATH = "/usr/sbin:/sbin"
_READY_S = 30.0
_STOP_S = 10.0

_CONFIGURATION = """\
ClusterName=ckptbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
KillWait=5
EnforcePartLimits=ALL
ReturnToService=2
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def missing() -> str | None:
    """Return why there can be no cluster here, or None where there can."""
    absent = [name for name in (*DAEMONS, *COMMANDS) if _which(name) is None]
    if absent:
        return f"Slurm is not installed ({', '.join(absent)}): apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "slurmd wants to be started by the superuser"
    return None


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which Slurm's commands mean this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *argv: str) -> str:
        """Run one of Slurm's commands and return what it prints."""
        done = subprocess.run(
            argv,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the jobs that have not ended."""
        return self.run("squeue", "--noheader", "--format=%i %T").splitlines()


def private_file_system(at: Path) -> list[str]:
    """Return the start of a command that has an empty file system of its own at a folder."""
    hiding = f'mount -t tmpfs none {shlex.quote(str(at))} && exec "$0" "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", hiding]


def clock_ahead(seconds: int) -> list[str]:
    """Return the start of a command whose monotonic clocks are ahead of this machine's."""
    return ["unshare", "--time", f"--monotonic={seconds}", f"--boottime={seconds}"]


def cannot(start: Sequence[str]) -> str | None:
    """Return why a command cannot be started so here, or None where it can."""
    done = subprocess.run([*start, "true"], capture_output=True, text=True, check=False)
    return f"{start[0]}: {done.stderr.strip()}" if done.returncode else None


@contextlib.contextmanager
def cluster(folder: Path, last: Sequence[str] = ()) -> Iterator[Cluster]:
    """Bring the cluster up in `folder`, whose path must be short, because sockets lie in it.

    The command of the last node's daemon begins with `last`.
    """
    (folder / "slurm.conf").write_text(_configuration(folder))
    _make_key(folder / "munge.key")
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name, argv in _daemons(folder, last).items():
            started.append(_start(folder, name, argv))
        made = Cluster(folder)
        _wait_until_idle(made, started)
        yield made
    finally:
        _cancel_everything(Cluster(folder))
        for process in reversed(started):
            _stop(process)
        _end_users_of(folder)


def _configuration(folder: Path) -> str:
    host = socket.gethostname().partition(".")[0]
    controller_port, *ports = _free_ports(1 + len(NODES))
    nodes = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN"
        for name, port in zip(NODES, ports, strict=True)
    ]
    return _CONFIGURATION.format(
        host=host,
        controller_port=controller_port,
        user=getpass.getuser(),
        folder=folder,
        nodes="\n".join(nodes),
        partition=PARTITION,
    )


def _make_key(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(os.urandom(128))


def _daemons(folder: Path, last: Sequence[str]) -> dict[str, list[str]]:
    """Return each daemon's command line. It runs in the foreground, so that it can be ended."""
    munged = [
        _program("munged"),
        "--foreground",
        # Without it, munged refuses a folder below /tmp, where others may write.
        "--force",
        f"--socket={folder}/munge.socket",
        f"--key-file={folder}/munge.key",
        f"--pid-file={folder}/munged.pid",
        f"--seed-file={folder}/munged.seed",
        f"--log-file={folder}/munged.log",
    ]
    configuration = f"{folder}/slurm.conf"
    slurmd = {
        f"slurmd-{node}": [_program("slurmd"), "-D", "-N", node, "-f", configuration]
        for node in NODES
    }
    name = f"slurmd-{NODES[-1]}"
    slurmd[name] = [*last, *slurmd[name]]
    return {
        "munged": munged,
        "slurmctld": [_program("slurmctld"), "-D", "-f", configuration],
        **slurmd,
    }


def _start(folder: Path, name: str, argv: list[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(
            argv, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    if name == "munged":
        _wait_for(folder / "munge.socket", process)
    return process


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"{path} did not appear: {path.parent}/munged.log and munged.out tell why"
            )
        time.sleep(0.05)


def _wait_until_idle(made: Cluster, started: list[subprocess.Popen[bytes]]) -> None:
    deadline, states = time.monotonic() + _READY_S, ""
    while states.split() != ["idle"] * len(NODES):
        if any(process.poll() is not None for process in started) or time.monotonic() > deadline:
            raise RuntimeError(
                f"the cluster did not come up ({states!r}): the logs are in {made.folder}"
            )
        time.sleep(0.1)
        # The controller may not listen yet.
        with contextlib.suppress(subprocess.CalledProcessError):
            states = made.run("sinfo", "--noheader", "--Node", "--format=%t")


def _cancel_everything(made: Cluster) -> None:
    # A cluster that did not come up has no jobs either.
    with contextlib.suppress(subprocess.SubprocessError):
        made.run("scancel", f"--user={getpass.getuser()}")
        deadline = time.monotonic() + _STOP_S
        while made.jobs() and time.monotonic() < deadline:
            time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    process.kill()
    process.wait()


def _end_users_of(folder: Path) -> None:
    """End the supervisors of a job's steps. Their parent has ended, but they hold the log open."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and any(
                Path(file.path).is_relative_to(folder) for file in process.open_files()
            ):
                process.kill()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_sockets:
        probes = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]


def _program(name: str) -> str:
    return _which(name) or name


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}")
