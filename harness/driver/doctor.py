"""The abilities of this machine, found out by trying.

Nothing here raises an error. Each finding is a `Check`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import psutil

from harness.driver import machine, preflight
from harness.driver.environments import Environment, Environments, check_interpreter
from harness.durability import gate
from harness.durability.blocks.available import available
from harness.durability.blocks.kinds import FILE_SYSTEMS
from harness.run.errors import UsageError

Status = Literal["ok", "warning", "missing"]
_PROBE_BYTES = 2**20
_TIMEOUT_S = 20
_ENVIRONMENT_CHECKS: dict[str, tuple[Status, str]] = {
    "ready": ("ok", "environment is ready"),
    "external": ("ok", "an interpreter of your own"),
    "outdated": ("warning", "environment is outdated or unfinished; the next run makes it again"),
    "missing": ("missing", "no environment yet; the first run makes it"),
}


@dataclass(frozen=True)
class Check:
    """One finding.

    `missing` limits what can be run, `warning` limits what the numbers are worth.
    """

    name: str
    status: Status
    detail: str


def doctor(environments: Environments, scratch: Path) -> list[Check]:
    """Return what this machine can run, with checkpoints under the directory `scratch`."""
    listed = environments.listing()
    return [
        Check("python", "ok", platform.python_version()),
        *(_environment(environment) for environment in listed),
        _mpi(listed),
        _slurm(),
        _gpu(),
        _tool("strace", "strace", "system calls cannot be traced, and no save can be struck"),
        _gate(),
        _disks(),
        _tool("fio", "fio", "the ceilings cannot be checked against fio"),
        _tool("compiler", "cc", "deepfreeze copies through the caches, which takes longer"),
        *_storage(scratch),
        _memory(),
    ]


def _environment(environment: Environment) -> Check:
    if environment.state == "external":
        try:
            check_interpreter(environment.name, environment.interpreter)
        except UsageError as error:
            return Check(environment.name, "missing", str(error))
    status, detail = _ENVIRONMENT_CHECKS[environment.state]
    return Check(environment.name, status, f"{detail} ({environment.interpreter})")


def _mpi(environments: list[Environment]) -> Check:
    """Look for mpirun beside the interpreters first, because their ranks use that one's library."""
    beside = [
        environment.interpreter.parent / "mpirun"
        for environment in environments
        if environment.state in ("ready", "external")
    ]
    paths = [str(path) for path in beside if path.exists()]
    path = paths[0] if paths else shutil.which("mpirun")
    if path is None:
        detail = "no mpirun in an environment or on the path: only world 1 can be run"
        return Check("mpirun", "missing", detail)
    return Check("mpirun", "ok", f"{_version(path)} ({path})")


def _tool(name: str, command: str, consequence: str) -> Check:
    path = shutil.which(command)
    if path is None:
        return Check(name, "missing", f"no {command} on the path: {consequence}")
    return Check(name, "ok", f"{_version(path)} ({path})")


def _gate() -> Check:
    """Strike a call of a small program, because a kernel or a container may forbid it."""
    obstacle = gate.available()
    if obstacle is None:
        return Check("faults", "ok", "system calls can be made to fail")
    return Check("faults", "missing", f"{obstacle}; kills and errors are only replayed")


def _disks() -> Check:
    """Make a small disk of each kind, because each needs programs and rights of its own."""
    obstacles = {kind: available(kind) for kind in FILE_SYSTEMS}
    possible = [kind for kind, obstacle in obstacles.items() if obstacle is None]
    if len(possible) == len(obstacles):
        return Check("disks", "ok", f"power can be cut on {', '.join(possible)}")
    reasons = sorted({obstacle for obstacle in obstacles.values() if obstacle})
    detail = f"{'; '.join(reasons)}; the suite faults-disks leaves such file systems out"
    return Check("disks", "missing", detail)


def _slurm() -> Check:
    """Ask for the partitions, because the commands alone may belong to no cluster."""
    path = shutil.which("sinfo")
    if path is None:
        return Check("slurm", "missing", "no sinfo on the path: the slurm launcher cannot be used")
    command = f"{_version(path)} ({path})"
    try:
        done = subprocess.run(
            [path, "--noheader", "--format=%R"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        detail = f"{command} reaches no controller: the slurm launcher cannot be used"
        return Check("slurm", "warning", detail)
    partitions = ", ".join(done.stdout.split())
    return Check("slurm", "ok", f"{command}; partitions: {partitions}")


def _version(path: str) -> str:
    """Return the first line that `--version` prints."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return "does not answer"
    lines = (done.stdout or done.stderr).splitlines()
    return lines[0] if lines else "of unknown version"


def _gpu() -> Check:
    names = machine.gpu_names()
    if not names:
        return Check("gpu", "missing", "nvidia-smi lists none: only the CPU can be measured")
    return Check("gpu", "ok", ", ".join(names))


def _storage(scratch: Path) -> list[Check]:
    try:
        preflight.check_scratch(scratch, 0)
    except UsageError as error:
        return [Check("disk", "missing", str(error))]
    return [_disk(scratch), _direct_io(scratch), _page_cache(scratch), _sockets(scratch)]


def _disk(scratch: Path) -> Check:
    mount = machine.mount_of(scratch)
    device = machine.block_device(mount)
    kind = f"{mount.type} on {device.name}" if device else mount.type
    free_gib = shutil.disk_usage(scratch).free / preflight.GIB
    detail = f"{kind}, {free_gib:.1f} GiB free in {scratch}"
    if device and device.name.startswith("loop"):
        loop = "a loop device is a file that its host may hold in memory: loads may not be cold"
        return Check("disk", "warning", f"{detail}; {loop}")
    return Check("disk", "ok", detail)


def _direct_io(scratch: Path) -> Check:
    reason = preflight.direct_io(scratch)
    if reason:
        detail = f"{reason}: ceilings and cold reads here say nothing about a disk"
        return Check("direct I/O", "warning", detail)
    return Check("direct I/O", "ok", "O_DIRECT writes reach the device")


def _page_cache(scratch: Path) -> Check:
    """Write a file, ask the kernel to drop it, and look whether it did."""
    try:
        with tempfile.TemporaryFile(dir=scratch) as file:
            resident = _resident_after_drop(file)
    except OSError as error:
        detail = f"cannot be inspected ({error.strerror}): loads will read as `unknown`"
        return Check("page cache", "warning", detail)
    pages = _PROBE_BYTES // mmap.PAGESIZE
    if resident:
        detail = f"{resident} of {pages} pages stay after a drop: cold loads cannot be measured"
        return Check("page cache", "warning", detail)
    return Check("page cache", "ok", f"a file can be dropped from it (0 of {pages} pages stay)")


def _resident_after_drop(file: BinaryIO) -> int:
    file.write(os.urandom(_PROBE_BYTES))
    file.flush()
    # The kernel never drops a dirty page.
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return _resident_pages(file)


def _resident_pages(file: BinaryIO) -> int:
    """Return how many of the file's pages are in the page cache, by mincore(2). Raise OSError."""
    pages = ctypes.c_ubyte * (_PROBE_BYTES // mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    # ctypes takes the address of a writable buffer only. This private mapping is writable, and
    # nobody writes to it.
    with mmap.mmap(file.fileno(), _PROBE_BYTES, access=mmap.ACCESS_COPY) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        residency = pages()
        result = libc.mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(_PROBE_BYTES), residency
        )
        # A mapping whose address is in use cannot be closed.
        del start
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return sum(page & 1 for page in residency)


def _sockets(scratch: Path) -> Check:
    """Bind a socket where a method's daemon would, because its path may be too long for that."""
    run = preflight.scratch_of(Path(f"doctor-{os.getpid()}"), scratch.absolute())
    path = run / preflight.LONGEST_SOCKET
    try:
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(str(path))
    except OSError as error:
        cannot = f"no socket can be made in the scratch directory ({error.strerror or error})"
        reason = preflight.too_long_for_sockets(run) or cannot
        return Check("sockets", "warning", f"{reason}: {preflight.WITHOUT_SOCKETS}")
    finally:
        shutil.rmtree(run, ignore_errors=True)
    return Check("sockets", "ok", "a method's daemon can listen in the scratch directory")


def _memory() -> Check:
    available = f"{psutil.virtual_memory().available / preflight.GIB:.1f} GiB available"
    if machine.hypervisor() and machine.free_page_reporting():
        detail = f"{available}; virtual machine with free page reporting: first touches may be slow"
        return Check("memory", "warning", detail)
    kind = "virtual machine" if machine.hypervisor() else "no hypervisor seen"
    return Check("memory", "ok", f"{available}; {kind}")
