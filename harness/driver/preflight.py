"""Conditions that must hold before a run starts.

A run that cannot work is refused in one sentence, and does not break down in its third hour.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

import workloads
from harness.driver import own_models
from harness.driver.launch import LAUNCHERS
from harness.driver.machine import mount_of
from harness.driver.shared_memory import digest_of
from harness.driver.suite import require
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase
from harness.wire.folders import LANE, Folders

GIB = 2**30
_BLOCK_BYTES = 512  # the unit of st_blocks, stat(2)
_DIRECT_WRITE_BYTES = 4096  # a multiple of every disk's logical block
_MAY_COMPRESS = frozenset({"zfs", "bcachefs"})
# The longest socket known, in a run's scratch folder: multiprocessing's, which PyTorch's
# asynchronous DCP uses when its daemon is a process.
LONGEST_SOCKET = Folders(Path(LANE.format(0))).temporary / "pymp-01234567" / "listener-01234567"
_SOCKET_PATH_BYTES = 107  # unix(7), without the NUL at the end
WITHOUT_SOCKETS = (
    "methods that write from a daemon process fail here, such as PyTorch's asynchronous DCP"
)
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})

# The peak of one rank in units of its state: the state, a method's copy of it (a snapshot or a
# serialized buffer), and the gradients with the buffer that the ceiling writes from.
_STATES_PER_RANK = 3
_INTERPRETER_BYTES = 1 * GIB  # a framework and its libraries


def scratch_of(run: Path, directory: Path) -> Path:
    """Return the scratch folder of a run below the directory that its user named.

    Its name is short, because methods make Unix sockets below it, and the path of a socket has at
    most 107 bytes.
    """
    return directory / digest_of(run)


def too_long_for_sockets(scratch: Path) -> str | None:
    """Return why methods cannot make sockets in a run's scratch folder; None where they fit."""
    length = len(os.fsencode(scratch.absolute() / LONGEST_SOCKET))
    if length <= _SOCKET_PATH_BYTES:
        return None
    return (
        f"sockets in a run's folder would have paths of {length} bytes, and the kernel takes "
        f"{_SOCKET_PATH_BYTES}; name a scratch directory with a shorter path (--dir)"
    )


def check_cases(plan: Sequence[PlannedCase]) -> None:
    """Raise UsageError for a case of a stored plan that this version cannot measure."""
    for item in plan:
        case = item.case
        require("launcher", case.launcher, LAUNCHERS)
        if case.model is not None:
            own_models.require_unchanged(case.model)
            continue
        try:
            workloads.load(
                case.workload, case.preset, case.precision, case.dropout, case.scale or 1
            )
        except ValueError as error:
            raise UsageError(f"case {case.id} cannot be measured here: {error}") from error


def check_scratch(path: Path, needed_bytes: int) -> None:
    """Raise UsageError unless `path` is a directory with room for files of `needed_bytes`."""
    if not path.exists():
        raise UsageError(f"scratch directory {path} does not exist")
    if not path.is_dir():
        raise UsageError(f"scratch directory {path} is not a directory")
    _try_to_write(path)
    free_bytes = shutil.disk_usage(path).free
    if free_bytes < needed_bytes:
        free, needed = _gib(free_bytes), _gib(needed_bytes)
        raise UsageError(
            f"scratch directory {path} has {free} free, and the run needs {needed}; "
            "name another one with --dir"
        )


def bytes_in(folder: Path) -> int:
    """Return the bytes of a disk that the files in a folder take. A folder may be missing."""
    total_bytes = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            # Another process that measures the run may remove a file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                total_bytes += os.lstat(Path(parent, name)).st_blocks * _BLOCK_BYTES
    return total_bytes


def _try_to_write(path: Path) -> None:
    """Write a file, because permissions show no read-only mount and do not bind the superuser."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"ckptbench")
    except OSError as error:
        raise UsageError(f"cannot write in scratch directory {path}: {error.strerror}") from error


def volatile(path: Path) -> str | None:
    """Return why a power loss takes every file below `path`, or None where it does not."""
    file_system = mount_of(path).type
    return f"{file_system} keeps files in memory" if file_system in _IN_MEMORY else None


def compresses(path: Path) -> bool:
    """Return whether files below `path` may take fewer bytes of the device than they have."""
    mount = mount_of(path)
    options = mount.options.split(",")
    return mount.type in _MAY_COMPRESS or any(each.startswith("compress") for each in options)


def direct_io(path: Path) -> str | None:
    """Return why O_DIRECT reaches no device from the directory `path`, or None where it does."""
    in_memory = volatile(path)
    if in_memory is not None:
        # Such a file system accepts O_DIRECT and ignores it.
        return in_memory
    if not hasattr(os, "O_DIRECT"):
        return "this operating system has no O_DIRECT"
    try:
        _write_directly(path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return f"{mount_of(path).type} does not take O_DIRECT"
        return f"a direct write failed: {error.strerror}"
    return None


def _write_directly(path: Path) -> None:
    name = path / f".ckptbench-direct-{os.getpid()}"
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            with mmap.mmap(-1, _DIRECT_WRITE_BYTES) as aligned:
                os.write(handle, aligned)
        finally:
            os.close(handle)
    finally:
        # Linux makes the file before it refuses to open it without the page cache.
        name.unlink(missing_ok=True)


def needed_memory_bytes(state_bytes: int, ranks: int) -> int:
    """Estimate the memory that `ranks` processes need for a state of `state_bytes` each."""
    return ranks * (_STATES_PER_RANK * state_bytes + _INTERPRETER_BYTES)


def check_memory(needed_bytes: int, available_bytes: int, case: str, advice: str) -> None:
    """Raise UsageError where the run's largest case would not fit into memory.

    `case` names it for the user, and `advice` says what makes it smaller.
    """
    if available_bytes < needed_bytes:
        available, needed = _gib(available_bytes), _gib(needed_bytes)
        raise UsageError(
            f"{available} of memory is available, and the largest case, {case}, needs about "
            f"{needed}; {advice}"
        )


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"


def available_memory_bytes() -> int:
    """Return how much memory the kernel can give to new processes without swapping."""
    return int(psutil.virtual_memory().available)
