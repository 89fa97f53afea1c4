"""What this machine can run, found out by trying.

Nothing here raises: each finding is a `Check`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import psutil

from harness.driver import machine, preflight
from harness.driver.environments import Environment, Environments
from harness.run.errors import UsageError

Status = Literal["ok", "warning", "missing"]
_PROBE_BYTES = 2**20
_TIMEOUT_S = 20
_ENVIRONMENT_CHECKS: dict[str, tuple[Status, str]] = {
    "ready": ("ok", "environment is ready"),
    "external": ("ok", "an interpreter of your own"),
    "outdated": ("warning", "environment is outdated or unfinished; the next run makes it anew"),
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
    found = environments.listing()
    return [
        Check("python", "ok", platform.python_version()),
        *(_environment(environment) for environment in found),
        _mpi(found),
        _slurm(),
        _gpu(),
        _tool("strace", "strace", "system calls and injected faults cannot be traced"),
        _tool("fio", "fio", "the ceilings cannot be checked against fio"),
        _tool("compiler", "cc", "deepfreeze copies through the caches, which takes longer"),
        *_storage(scratch),
        _memory(),
    ]


def _environment(environment: Environment) -> Check:
    status, detail = _ENVIRONMENT_CHECKS[environment.state]
    return Check(environment.framework, status, f"{detail} ({environment.interpreter})")


def _mpi(found: list[Environment]) -> Check:
    """Look for mpirun beside the interpreters first: the wheel in an environment is the one that its ranks talk to."""
    beside = [
        environment.interpreter.parent / "mpirun"
        for environment in found
        if environment.state in ("ready", "external")
    ]
    on_path = shutil.which("mpirun")
    paths = [str(path) for path in beside if path.exists()] or ([on_path] if on_path else [])
    if not paths:
        return Check(
            "mpirun",
            "missing",
            "no mpirun in an environment or on the path: only world 1 can be run",
        )
    return Check("mpirun", "ok", f"{_version(paths[0])} ({paths[0]})")


def _tool(name: str, command: str, consequence: str) -> Check:
    path = shutil.which(command)
    if path is None:
        return Check(name, "missing", f"no {command} on the path: {consequence}")
    return Check(name, "ok", f"{_version(path)} ({path})")


def _slurm() -> Check:
    """Ask for the partitions: the commands alone may belong to no cluster."""
    path = shutil.which("sinfo")
    if path is None:
        return Check("slurm", "missing", "no sinfo on the path: the slurm launcher cannot be used")
    try:
        done = subprocess.run(
            [path, "--noheader", "--format=%R"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return Check(
            "slurm",
            "warning",
            f"{_version(path)} ({path}) reaches no controller: the slurm launcher cannot be used",
        )
    return Check(
        "slurm", "ok", f"{_version(path)} ({path}); partitions: {', '.join(done.stdout.split())}"
    )


def _version(path: str) -> str:
    """Return the first line that `--version` prints."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return "does not answer"
    return next(iter((done.stdout or done.stderr).splitlines()), "of unknown version")


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
    return [_disk(scratch), _direct_io(scratch), _page_cache(scratch)]


def _disk(scratch: Path) -> Check:
    mount = machine.mount_of(scratch)
    device = machine.block_device(mount)
    where = f"{mount.type} on {device.name}" if device else mount.type
    return Check(
        "disk",
        "ok",
        f"{where}, {shutil.disk_usage(scratch).free / preflight.GIB:.1f} GiB free in {scratch}",
    )


def _direct_io(scratch: Path) -> Check:
    reason = preflight.direct_io(scratch)
    if reason:
        return Check(
            "direct I/O",
            "warning",
            f"{reason}: ceilings and cold reads here say nothing about a disk",
        )
    return Check("direct I/O", "ok", "O_DIRECT writes reach the device")


def _memory() -> Check:
    available = f"{psutil.virtual_memory().available / preflight.GIB:.1f} GiB available"
    if machine.hypervisor() and machine.free_page_reporting():
        return Check(
            "memory",
            "warning",
            f"{available}; virtual machine with free page reporting: first touches may be slow",
        )
    return Check(
        "memory",
        "ok",
        f"{available}; {'virtual machine' if machine.hypervisor() else 'no hypervisor seen'}",
    )


def _page_cache(scratch: Path) -> Check:
    """Write a file, ask the kernel to drop it, and look whether it did."""
    try:
        with tempfile.TemporaryFile(dir=scratch) as file:
            resident = _resident_after_drop(file)
    except OSError as error:
        return Check(
            "page cache",
            "warning",
            f"cannot be looked at ({error.strerror}): loads will read as `unknown`",
        )
    pages = _PROBE_BYTES // mmap.PAGESIZE
    if resident:
        return Check(
            "page cache",
            "warning",
            f"{resident} of {pages} pages stay after a drop: cold loads cannot be measured",
        )
    return Check("page cache", "ok", f"a file can be dropped from it (0 of {pages} pages stay)")


def _resident_after_drop(file: BinaryIO) -> int:
    file.write(os.urandom(_PROBE_BYTES))
    file.flush()
    os.fsync(file.fileno())  # a dirty page is never dropped
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return _resident_pages(file)


def _resident_pages(file: BinaryIO) -> int:
    """Return how many of the file's pages are in the page cache, by mincore(2). Raises OSError."""
    pages = ctypes.c_ubyte * (_PROBE_BYTES // mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    # ctypes takes the address of writable buffers only: a private, writable mapping that nobody
    # writes to.
    with mmap.mmap(file.fileno(), _PROBE_BYTES, access=mmap.ACCESS_COPY) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        residency = pages()
        result = libc.mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(_PROBE_BYTES), residency
        )
        del start  # a mapping whose address is in use cannot be closed
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return sum(page & 1 for page in residency)
