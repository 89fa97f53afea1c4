"""What a sample cost besides time: peak memory, processor time, page faults, bytes through the device."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from harness.wire.records import Usage


@dataclass(frozen=True)
class Reading:
    """The process's counters at one instant; `rss_bytes` is the peak since the last reset."""

    rss_bytes: int
    user_ns: int
    system_ns: int
    minor_faults: int
    read_bytes: int
    written_bytes: int


def begin() -> Reading:
    """Reset the peak of resident memory, here and in the children, and read the counters."""
    for process in [os.getpid(), *descendants()]:
        _reset_peak(process)
    return _read()


def since(start: Reading) -> Usage:
    """What has been used since `start`.

    Children that are still alive count with their own peak and their own transfers.
    """
    now = _read()
    return Usage(
        rss_before_bytes=start.rss_bytes,
        peak_rss_bytes=max(0, now.rss_bytes - start.rss_bytes),
        children_peak_bytes=sum(_peak_bytes(process) for process in descendants()),
        cpu_user_ns=now.user_ns - start.user_ns,
        cpu_system_ns=now.system_ns - start.system_ns,
        minor_faults=now.minor_faults - start.minor_faults,
        read_bytes=now.read_bytes - start.read_bytes,
        written_bytes=now.written_bytes - start.written_bytes,
    )


def transferred_bytes() -> tuple[int, int]:
    """(read, written) bytes that this process and its living descendants moved through block devices so far."""
    totals = [_io_bytes(process) for process in [os.getpid(), *descendants()]]
    return sum(read for read, _ in totals), sum(written for _, written in totals)


def descendants() -> list[int]:
    """Every living process below this one, but for the worker's own helper, which measures and is not measured."""
    found: list[int] = []
    frontier = [os.getpid()]
    while frontier:
        for child in _children(frontier.pop()):
            if not _is_helper(child):
                found.append(child)
                frontier.append(child)
    return found


def _read() -> Reading:
    used = resource.getrusage(resource.RUSAGE_SELF)
    read_bytes, written_bytes = transferred_bytes()
    return Reading(
        rss_bytes=_peak_bytes(os.getpid()),
        user_ns=int(used.ru_utime * 1e9),
        system_ns=int(used.ru_stime * 1e9),
        minor_faults=used.ru_minflt,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
    )


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:  # it ended meanwhile
        return found
    for thread in threads:
        try:
            found += [
                int(child)
                for child in Path(f"/proc/{process}/task/{thread}/children").read_text().split()
            ]
        except OSError:
            continue
    return found


def _is_helper(process: int) -> bool:
    try:
        return b"harness.worker.backing" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def _reset_peak(process: int) -> None:
    try:
        Path(f"/proc/{process}/clear_refs").write_text("5")
    except (
        OSError
    ):  # ended meanwhile, or a kernel without the file: the peak is then one of the whole life
        return


def _peak_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _io_bytes(process: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:
        return 0, 0
    fields = dict(line.split(": ") for line in lines)
    return int(fields["read_bytes"]), int(fields["write_bytes"])
