"""Memory that the kernel can hand out at once.

A hypervisor with free page reporting or ballooning takes free pages back. The first touch of such a
page is up to ten times slower: a write of 1 GiB into the page cache ran at 0.45 GB/s instead of 4.7
by this alone. So a helper process touches as much memory as the sample will need, and frees it
again. The kernel then owns these pages, backed. The rate at which the helper touched them is the
evidence. If it was slow, the pages had not been backed, so the helper touches them once more.
"""

from __future__ import annotations

import json
import mmap
import re
import subprocess
import sys
import time
from pathlib import Path

from harness.wire.records import Backing

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
# No machine of today touches backed memory slower, or unbacked memory faster.
_BACKED_BYTES_PER_S = 2e9
_TRIES = 3
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_PROCESSORS = Path("/proc/cpuinfo")


class Backer:
    """The helper process, and the best rate that it has reached for each number of bytes."""

    def __init__(self, ranks_here: int = 1) -> None:
        """Take the number of ranks on this node, which touch memory at the same time."""
        self._ranks_here = ranks_here
        self._is_virtual = _is_virtual()
        self._helper: subprocess.Popen[str] | None = None
        # Few pages are touched at a higher rate than many.
        self._best_bytes_per_s: dict[int, float] = {}

    def back(self, size_bytes: int) -> Backing:
        """Make the kernel own `size_bytes` of backed free memory, and return the evidence.

        Where less memory is available, most of it is backed.
        """
        if not self._is_virtual:
            return Backing("physical", touched_bytes=0, bytes_per_s=0.0, tries=0)
        touched_bytes = min(size_bytes, _available_bytes() * 6 // 10 // self._ranks_here)
        best = self._best_bytes_per_s.get(touched_bytes, 0.0)
        rate = 0.0
        for attempt in range(1, _TRIES + 1):
            rate = self._touch(touched_bytes)
            if rate >= max(0.5 * best, _BACKED_BYTES_PER_S):
                self._best_bytes_per_s[touched_bytes] = max(best, rate)
                return Backing("backed", touched_bytes, bytes_per_s=rate, tries=attempt)
        return Backing("unknown", touched_bytes, bytes_per_s=rate, tries=_TRIES)

    def close(self) -> None:
        """End the helper.

        It is killed, because it never sees the end of its input while a process that a method has
        forked and left behind holds the pipe open.
        """
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()
            self._helper = None

    def _touch(self, size_bytes: int) -> float:
        """Have the helper touch memory once. Return its rate in bytes a second, 0 if it failed."""
        if self._helper is None:
            command = [sys.executable, "-m", "harness.worker.backing"]
            self._helper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        try:
            self._helper.stdin.write(f"{size_bytes}\n")
            self._helper.stdin.flush()
            return float(json.loads(self._helper.stdout.readline()))
        except (OSError, ValueError):
            # The helper is gone. A sample without evidence is tagged, and not lost.
            self.close()
            return 0.0


def _is_virtual() -> bool:
    """Return whether this may be a virtual machine.

    Where the processor does not tell, as on ARM, it may be one.
    """
    flags = re.search(r"^flags\s*:(.*)$", _PROCESSORS.read_text(), re.MULTILINE)
    return flags is None or "hypervisor" in flags[1].split()


def _available_bytes() -> int:
    """Return how much memory can be taken, of the machine and of this process's control group."""
    own = _CONTROL_GROUPS / _own_group()
    # Slurm sets the limit on a group above that of the ranks.
    groups = [group for group in (own, *own.parents) if group.is_relative_to(_CONTROL_GROUPS)]
    limits = [_limit_of_group_bytes(group) for group in groups]
    known = [limit_bytes for limit_bytes in limits if limit_bytes is not None]
    return min([_available_on_machine_bytes(), *known])


def _limit_of_group_bytes(group: Path) -> int | None:
    """Return what a control group of version 2 leaves; None where it has no limit.

    Its pages of files are left out, because the kernel gives them back, but not those of shared
    memory.
    """
    try:
        limit = (group / "memory.max").read_text().strip()
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    if limit == "max":
        return None
    taken_bytes = sum(int(counts.get(name, 0)) for name in ("anon", "shmem"))
    return max(0, int(limit) - taken_bytes)


def _own_group() -> str:
    """Return the path of this process's control group, below where they are mounted."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            return path.lstrip("/")
    return ""


def _available_on_machine_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _touch_once(size_bytes: int) -> float:
    """Allocate memory, touch it and free it. Return the seconds that this took."""
    begin = time.perf_counter()
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapping:
        mapping.madvise(mmap.MADV_HUGEPAGE)
        try:
            mapping.madvise(_POPULATE_WRITE)
        except OSError:  # an older kernel
            page_count = -(-size_bytes // mmap.PAGESIZE)
            memoryview(mapping)[:: mmap.PAGESIZE] = bytes(page_count)
        return time.perf_counter() - begin


def _serve() -> None:
    for line in sys.stdin:
        size_bytes = max(int(line), mmap.PAGESIZE)
        print(size_bytes / _touch_once(size_bytes), flush=True)


if __name__ == "__main__":
    _serve()
