"""The adaptive policy on a real disk that becomes five times slower while a script trains."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from harness.intervals.adaptive import Adaptive

pytestmark = [pytest.mark.slow, pytest.mark.patient, pytest.mark.timeout(900)]

BUDGET = 0.1
MTBF_S = 4.0  # so short that the budget, and not the failures, bounds the interval
SAVED_BYTES = 2 << 20
STEP_S = 0.005  # of an accelerator, for which the script waits
FAST_BYTES_PER_S = 64 << 20
WINDOW = 20  # intervals
_V1 = Path("/sys/fs/cgroup/blkio")
_V2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@dataclass
class Throttle:
    """A control group whose writes to one device have a limit."""

    group: Path
    device: str
    is_v1: bool

    def set(self, bytes_per_s: int) -> None:
        if self.is_v1:
            file, line = "blkio.throttle.write_bps_device", f"{self.device} {bytes_per_s}"
        else:
            file, line = "io.max", f"{self.device} wbps={bytes_per_s}"
        (self.group / file).write_text(line)


@contextmanager
def throttled(folder: Path) -> Iterator[Throttle]:
    """Put this process into a group of its own, and back at the end."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    is_v1 = (_V1 / "blkio.throttle.write_bps_device").exists()
    parents = [_V1] if is_v1 else [each for each in _V2 if _has_io(each)]
    if not parents or os.geteuid() != 0:
        pytest.skip("a limit for a disk needs root, and the io controller of control groups")
    group = parents[0] / f"ckptbench-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield Throttle(group, device, is_v1)
    finally:
        (parents[0] / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _has_io(parent: Path) -> bool:
    file = parent / "cgroup.subtree_control"
    return file.exists() and "io" in file.read_text().split()


class Loop:
    """A script that saves for real, and notes each interval: training and stall."""

    def __init__(self, file: Path, in_background: bool = False) -> None:
        self.file = file
        self.in_background = in_background
        self.writer = Thread()
        self.written_s: list[float] = []  # how long each save in the background took
        self.pacer = Adaptive(MTBF_S, BUDGET)
        self.intervals: list[tuple[float, float]] = []
        self.begin_s = time.perf_counter()
        # Direct I/O needs memory that begins at a page.
        self.buffer = mmap.mmap(-1, SAVED_BYTES)

    def train(self, saves: int) -> None:
        for _ in range(saves):
            time.sleep(STEP_S)
            while not self.pacer.checkpoint_now():
                time.sleep(STEP_S)
            saving_s = time.perf_counter()
            if self.in_background:
                self.start_save()
            else:
                with self.pacer.saving():
                    self.save()
            end_s = time.perf_counter()
            self.intervals.append((saving_s - self.begin_s, end_s - saving_s))
            self.begin_s = end_s
        if self.in_background:
            self.writer.join()

    def start_save(self) -> None:
        """Save in a thread. Fails where the one before still goes on."""
        assert not self.writer.is_alive()
        with self.pacer.saving(in_background=True) as over:
            self.writer = Thread(target=self.save_and_tell, args=(over,))
            self.writer.start()

    def save_and_tell(self, over: Callable[[], None]) -> None:
        begin_s = time.perf_counter()
        try:
            self.save()
        finally:
            self.written_s.append(time.perf_counter() - begin_s)
            # From here on, nothing is left of the save but the end of its thread.
            over()

    def save(self) -> None:
        """Write past the page cache, because the kernel writes that back outside of the group."""
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            os.write(descriptor, self.buffer)
        finally:
            os.close(descriptor)


def test_the_budget_holds_when_the_disk_gets_five_times_slower(scratch: Path) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    with throttled(scratch) as throttle:
        throttle.set(FAST_BYTES_PER_S)
        loop = Loop(scratch / "checkpoint")
        loop.train(WINDOW + 5)
        changed_at = len(loop.intervals)
        throttle.set(FAST_BYTES_PER_S // 5)
        loop.train(WINDOW + 8)
    before, after = loop.intervals[5:changed_at], loop.intervals[changed_at + 1 :]
    stall_before_s = float(np.median([stall for _, stall in before]))
    stall_after_s = float(np.median([stall for _, stall in after]))
    worst = max(_overhead(after[first:]) for first in range(len(after) - WINDOW))
    print(
        f"stalls of {stall_before_s * 1e3:.0f} ms became {stall_after_s * 1e3:.0f} ms, and the "
        f"overhead of {WINDOW} intervals at most {worst:.2%} of a budget of {BUDGET:.0%}"
    )
    # The kernel lets a burst pass before it slows down a writer, so the ratio can be above 5.
    assert stall_after_s / stall_before_s > 3.5
    assert worst <= BUDGET * 1.01


def test_no_save_in_the_background_waits_for_one_that_got_five_times_slower(scratch: Path) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    with throttled(scratch) as throttle:
        throttle.set(FAST_BYTES_PER_S)
        loop = Loop(scratch / "checkpoint", in_background=True)
        loop.train(WINDOW)
        throttle.set(FAST_BYTES_PER_S // 5)
        loop.train(WINDOW)
    before, after = loop.written_s[5:WINDOW], loop.written_s[WINDOW + 1 :]
    assert len(before) + len(after) == 2 * WINDOW - 6
    # The loop would have failed, had a save begun before the one before was over.
    assert np.median(after) / np.median(before) > 3.5


def _overhead(intervals: list[tuple[float, float]]) -> float:
    """Return the overhead of the first intervals. Each pays for the save with which it began."""
    window = intervals[: WINDOW + 1]
    return sum(stall for _, stall in window[:-1]) / sum(trained for trained, _ in window[1:])
