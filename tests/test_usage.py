"""The cost of a sample besides time, while real memory, processes and files are used."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from harness.driver import preflight
from harness.worker import backing, storage, usage

MIB = 1 << 20
PAGE_BYTES = mmap.PAGESIZE
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def resets() -> None:
    """Skip where the kernel cannot reset a peak, which is then that of the process's life."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this kernel does not reset the peak of resident memory")


@pytest.fixture
def cold(scratch: Path) -> Iterator[Path]:
    """Make a file of 4 MiB on a disk that is not in the page cache."""
    reason = preflight.direct_io(scratch)
    if reason is not None:
        pytest.skip(reason)
    file = scratch / "cold"
    file.write_bytes(os.urandom(4 * MIB))
    storage.drop_from_cache(file)
    yield file
    file.unlink()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start children that run a program and then wait until their input ends."""
    children: list[subprocess.Popen[str]] = []

    def run(program: str, *arguments: str) -> subprocess.Popen[str]:
        text = f"import subprocess, sys\n{program}\nprint('ready', flush=True)\nsys.stdin.read()"
        argv = [sys.executable, "-c", text, *arguments]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield run
    for child in children:
        child.communicate()


def touch(size_bytes: int) -> None:
    """Use some memory and free it."""
    np.ones(size_bytes, dtype=np.uint8)


# Memory


@pytest.mark.usefixtures("resets")
def test_the_peak_is_seen_although_the_memory_was_given_back() -> None:
    begin = usage.begin()
    touch(64 * MIB)
    used = usage.since(begin)
    assert 60 * MIB <= used.peak_rss_bytes <= 80 * MIB
    assert used.rss_before_bytes > 0
    assert used.minor_faults > 0


@pytest.mark.usefixtures("resets")
def test_a_new_beginning_forgets_the_last_peak() -> None:
    usage.begin()
    touch(64 * MIB)
    assert usage.since(usage.begin()).peak_rss_bytes < 16 * MIB


@pytest.mark.usefixtures("resets")
def test_the_memory_before_is_what_is_resident_at_the_start() -> None:
    """So its growth over the samples of a process is what the process keeps."""
    touch(64 * MIB)
    first = usage.since(usage.begin())
    # The C library may take up to 32 MiB from what an earlier test has freed.
    kept = np.ones(48 * MIB, dtype=np.uint8)
    second = usage.since(usage.begin())
    resident_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    assert second.rss_before_bytes == pytest.approx(resident_bytes, abs=4 * MIB)
    growth_bytes = second.rss_before_bytes - first.rss_before_bytes
    assert growth_bytes == pytest.approx(kept.nbytes, abs=4 * MIB)


@pytest.mark.usefixtures("resets")
def test_less_memory_than_at_the_start_is_no_negative_peak() -> None:
    held = [np.ones(64 * MIB, dtype=np.uint8)]
    begin = usage.begin()
    held.clear()
    usage._reset_peak(os.getpid())
    assert usage.since(begin).peak_rss_bytes == 0


HUNGRY = f"held = b'x' * {48 * MIB}"


def test_memory_of_children_and_of_their_children_is_counted(start: Start) -> None:
    before = len(usage.descendants())
    start(HUNGRY)
    waiting = f"{HUNGRY}; print('ready', flush=True); import sys; sys.stdin.read()"
    nested = f"subprocess.run([sys.executable, '-c', {waiting!r}])"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; {nested}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    assert len(usage.descendants()) == before + 3
    used = usage.since(usage.begin())
    assert used.children_before_bytes >= 2 * 48 * MIB
    assert used.children_peak_bytes >= used.children_before_bytes
    parent.communicate()
    assert 48 * MIB <= usage.since(usage.begin()).children_peak_bytes < 2 * 48 * MIB


@pytest.mark.usefixtures("resets")
def test_a_childs_peak_of_before_is_not_counted(start: Start) -> None:
    start(f"{HUNGRY}; del held")
    assert usage.since(usage.begin()).children_peak_bytes < 40 * MIB


def test_children_that_have_ended_count_no_longer(start: Start) -> None:
    child = start(HUNGRY)
    begin = usage.begin()
    child.communicate()
    assert child.pid not in usage.descendants()
    assert usage.since(begin).children_peak_bytes == 0


def test_the_workers_own_helper_is_not_counted(start: Start) -> None:
    child = start("pass")
    argv = [sys.executable, "-m", "harness.worker.backing"]
    helper = subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert helper.stdin is not None
    assert helper.stdout is not None
    helper.stdin.write("4096\n")
    helper.stdin.flush()
    assert float(helper.stdout.readline()) > 0
    assert child.pid in usage.descendants()
    assert helper.pid not in usage.descendants()
    helper.communicate()


# Processor


def test_waiting_costs_no_processor_time_and_working_does() -> None:
    begin = usage.begin()
    time.sleep(0.05)
    waited = usage.since(begin)
    begin = usage.begin()
    sum(range(1_000_000))
    worked = usage.since(begin)
    assert waited.cpu_user_ns + waited.cpu_system_ns < 30_000_000
    assert worked.cpu_user_ns + worked.cpu_system_ns > 1_000_000


# The device


def test_reading_a_cold_file_goes_through_the_device_and_a_warm_one_not(cold: Path) -> None:
    begin = usage.begin()
    cold.read_bytes()
    assert usage.since(begin).read_bytes >= 4 * MIB
    begin = usage.begin()
    cold.read_bytes()
    assert usage.since(begin).read_bytes == 0


def test_what_is_written_is_counted(cold: Path) -> None:
    begin = usage.begin()
    cold.write_bytes(bytes(4 * MIB))
    storage.sync_tree(cold)
    assert usage.since(begin).written_bytes >= 4 * MIB


def test_what_a_child_reads_is_counted_while_it_lives_and_when_it_has_ended(
    start: Start, cold: Path
) -> None:
    begin = usage.begin()
    child = start("open(sys.argv[1], 'rb').read()", str(cold))
    living = usage.since(begin).read_bytes
    assert living >= 4 * MIB
    child.communicate()
    assert usage.since(begin).read_bytes >= living, "the kernel adds it to the parent's transfers"


def test_what_a_child_had_read_before_is_not_counted(start: Start, cold: Path) -> None:
    start("open(sys.argv[1], 'rb').read()", str(cold))
    assert usage.since(usage.begin()).read_bytes < 4 * MIB


def test_ranks_of_one_node_do_not_take_more_memory_together_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    touched: list[int] = []
    monkeypatch.setattr(backing, "_is_virtual", lambda: True)
    monkeypatch.setattr(backing, "_available_bytes", lambda: 1000)
    monkeypatch.setattr(backing.Backer, "_touch", lambda self, size: touched.append(size) or 3e9)
    for ranks in (1, 4):
        backing.Backer(ranks).back(10_000)
    assert touched == [600, 150]


@pytest.mark.parametrize(
    ("processors", "may_be_virtual"),
    [
        ("flags\t\t: fpu hypervisor sse\nbugs\t\t:\n", True),
        ("flags\t\t: fpu sse\nbugs\t\t: hypervisor\n", False),
        ("Features\t: fp asimd\n", True),
    ],
    ids=["virtual", "physical", "ARM does not tell"],
)
def test_a_processor_that_does_not_tell_may_be_virtual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processors: str, may_be_virtual: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(processors)
    monkeypatch.setattr(backing, "_PROCESSORS", tmp_path / "cpuinfo")
    assert backing._is_virtual() == may_be_virtual


@pytest.mark.parametrize(("limit", "expected"), [("max\n", None), ("5000\n", 3000), ("1000\n", 0)])
def test_the_limit_of_a_control_group_counts(
    tmp_path: Path, limit: str, expected: int | None
) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.stat").write_text("anon 1500\nfile 70000\nshmem 500\n")
    assert backing._limit_of_group_bytes(tmp_path) == expected
    assert backing._limit_of_group_bytes(tmp_path / "missing") is None


def test_a_helper_that_has_died_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing, "_is_virtual", lambda: True)
    backer = backing.Backer()
    assert backer.back(1 << 20).bytes_per_s > 0
    assert backer._helper is not None
    backer._helper.kill()
    backer._helper.wait()
    assert backer.back(1 << 20).bytes_per_s > 0
    backer.close()


def test_the_limit_of_a_group_above_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm limits a job, and the group of its ranks has no limit of its own."""
    own = tmp_path / "job" / "task"
    own.mkdir(parents=True)
    for group, limit in ((own, "max"), (own.parent, "5000")):
        (group / "memory.max").write_text(limit)
        (group / "memory.stat").write_text("anon 2000\n")
    monkeypatch.setattr(backing, "_CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(backing, "_own_group", lambda: "job/task")
    assert backing._available_bytes() == 3000
