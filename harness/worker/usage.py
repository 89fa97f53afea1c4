"""The cost of a sample besides time: memory, processor time, page faults, device transfers."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from harness.wire.records import Usage


@dataclass(frozen=True)
class Reading:
    """The counters of this process and its children at one instant.

    `peak_bytes` and `children_peak_bytes` are peaks of resident memory since the last reset.
    """

    peak_bytes: int
    children_peak_bytes: int
    user_ns: int
    system_ns: int
    minor_faults: int
    read_bytes: int
    written_bytes: int


def begin() -> Reading:
    """Reset the peaks of resident memory, here and in the children, and read the counters.

    A peak that has just been reset is the memory that is resident now.
    """
    for process in [os.getpid(), *descendants()]:
        _reset_peak(process)
    return _read()


def since(start: Reading) -> Usage:
    """Return what was used since `start`.

    Children that are still alive count with their own peaks and transfers. The memory of children
    that have ended is not known. Their transfers are, because the kernel adds them to the parent's.
    """
    now = _read()
    return Usage(
        rss_before_bytes=start.peak_bytes,
        peak_rss_bytes=max(0, now.peak_bytes - start.peak_bytes),
        children_peak_bytes=now.children_peak_bytes,
        cpu_user_ns=now.user_ns - start.user_ns,
        cpu_system_ns=now.system_ns - start.system_ns,
        minor_faults=now.minor_faults - start.minor_faults,
        read_bytes=now.read_bytes - start.read_bytes,
        written_bytes=now.written_bytes - start.written_bytes,
        children_before_bytes=start.children_peak_bytes,
    )


def transferred_bytes() -> tuple[int, int]:
    """Return the bytes that this process and its living descendants read from devices and wrote."""
    return _transferred_by([os.getpid(), *descendants()])


def bytes_of_read_calls() -> int:
    """Return the bytes that this process has read by system calls, from wherever they came.

    In contrast to transfers from a device, every file system counts them.
    """
    lines = Path("/proc/self/io").read_text().splitlines()
    fields = dict(line.split(": ") for line in lines)
    return int(fields["rchar"])


def resident_bytes() -> int:
    """Return how much memory of this process is resident."""
    return _memory_bytes(os.getpid(), "VmRSS")


def descendants() -> list[int]:
    """Return every living process below this one, except the worker's helper that backs memory."""
    below: list[int] = []
    frontier = [os.getpid()]
    while frontier:
        for child in _children(frontier.pop()):
            if not _is_helper(child):
                below.append(child)
                frontier.append(child)
    return below


def _read() -> Reading:
    children = descendants()
    used = resource.getrusage(resource.RUSAGE_SELF)
    read_bytes, written_bytes = _transferred_by([os.getpid(), *children])
    return Reading(
        peak_bytes=_memory_bytes(os.getpid(), "VmHWM"),
        children_peak_bytes=sum(_memory_bytes(child, "VmHWM") for child in children),
        user_ns=int(used.ru_utime * 1e9),
        system_ns=int(used.ru_stime * 1e9),
        minor_faults=used.ru_minflt,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
    )


def _children(process: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:  # it has ended meanwhile
        return children
    for thread in threads:
        try:
            listed = Path(f"/proc/{process}/task/{thread}/children").read_text()
        except OSError:  # the thread has ended meanwhile
            continue
        children.extend(int(child) for child in listed.split())
    return children


def _is_helper(process: int) -> bool:
    try:
        return b"harness.worker.backing" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def _reset_peak(process: int) -> None:
    try:
        Path(f"/proc/{process}/clear_refs").write_text("5")
    except OSError:
        # The process has ended, or the kernel lacks the file. The peak is then that of its life.
        return


def _memory_bytes(process: int, name: str) -> int:
    """Return a value of a process's memory, such as "VmHWM"; 0 where the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _transferred_by(processes: list[int]) -> tuple[int, int]:
    totals = [_io_bytes(process) for process in processes]
    read_bytes = sum(read for read, _ in totals)
    written_bytes = sum(written for _, written in totals)
    return read_bytes, written_bytes


def _io_bytes(process: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:
        return 0, 0
    fields = dict(line.split(": ") for line in lines)
    return int(fields["read_bytes"]), int(fields["write_bytes"])
