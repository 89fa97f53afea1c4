"""Ceilings move the bytes that they say, as fast as an independent tool, and leave no files."""

from __future__ import annotations

import functools
import itertools
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.ratios import of_differences
from harness.driver import jobs, preflight
from harness.wire.case import Storage
from harness.worker import ceiling as ceilings
from harness.worker import storage, usage
from harness.worker.ceiling import RING_BYTES, Ceiling, calibrate
from harness.worker.world import World

MIB = 1 << 20
PAIRS = 7
SERIES = 3  # of so many pairs at most
TOTAL_BYTES = 256 * MIB
BLOCK_BYTES = 4 * MIB
DEPTH = 4


@pytest.fixture
def place(scratch: Path) -> Iterator[Path]:
    folder = scratch / "ceilings"
    folder.mkdir()
    yield folder
    storage.remove_tree(folder)


@pytest.fixture
def direct(scratch: Path) -> None:
    """Skip where files are in memory, because there is no device whose speed could be measured."""
    reason = preflight.direct_io(scratch)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only briefly for a quiet disk, because other programs may keep it busy.

    The tests that use this fixture do not look at times.
    """
    monkeypatch.setattr(
        ceilings, "wait_until_quiet", functools.partial(storage.wait_until_quiet, limit_s=0.05)
    )


def cached() -> Storage:
    """Return settings that any file system takes."""
    return Storage(False, MIB, 1, MIB, 2, counts_device_reads=False)


def settings(direct: bool = True) -> Storage:
    return Storage(direct, BLOCK_BYTES, DEPTH, BLOCK_BYTES, DEPTH, counts_device_reads=True)


class Ranks(World):
    """The first of several ranks. The others are slower by a second."""

    size = 4

    def maximum(self, value: int) -> int:
        return value + 1_000_000_000


# A ceiling


@pytest.mark.parametrize("total", [1, 4096, 3 * MIB + 5, RING_BYTES + MIB])
def test_a_write_takes_time_and_leaves_no_file(place: Path, total: int) -> None:
    assert Ceiling(cached(), place, World()).write_ns(total) > 0
    assert list(place.iterdir()) == []


def test_a_write_is_not_over_before_its_flush_is(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_flush(path: Path) -> None:
        assert path.stat().st_size == MIB
        time.sleep(0.2)
        storage.sync_tree(path)

    monkeypatch.setattr(ceilings, "sync_tree", slow_flush)
    assert Ceiling(cached(), place, World()).write_ns(MIB) > 200_000_000


@pytest.mark.parametrize("total", [1, 3 * MIB + 5])
def test_a_read_takes_time_and_its_file_goes_at_the_end(place: Path, total: int) -> None:
    ceiling = Ceiling(cached(), place, World())
    assert ceiling.read_ns(total) > 0
    assert [file.stat().st_size % 4096 for file in place.iterdir()] == [0]
    ceiling.close()
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("direct")
def test_a_direct_write_of_an_odd_size_is_rounded_up_to_whole_blocks(place: Path) -> None:
    before = usage.transferred_bytes()
    ceiling = Ceiling(settings(), place, World())
    ceiling.write_ns(3 * MIB + 5)
    ceiling.read_ns(3 * MIB + 5)
    read, written = (
        after - start for after, start in zip(usage.transferred_bytes(), before, strict=True)
    )
    assert read >= 3 * MIB + 4096
    assert written >= 2 * (3 * MIB + 4096)


@pytest.mark.usefixtures("direct")
def test_every_read_comes_from_the_device(place: Path) -> None:
    """A read through the page cache does too, because the file is dropped from it first."""
    ceiling = Ceiling(cached(), place, World())
    for _ in range(2):
        before, _ = usage.transferred_bytes()
        ceiling.read_ns(2 * MIB)
        after, _ = usage.transferred_bytes()
        assert after - before >= 2 * MIB


@contextmanager
def files_at_most(size_bytes: int) -> Iterator[None]:
    """Limit the size of files, which looks to this process like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_no_file_either(place: Path) -> None:
    with files_at_most(MIB), pytest.raises(OSError, match="too large"):
        Ceiling(cached(), place, World()).write_ns(4 * MIB)
    assert list(place.iterdir()) == []


def test_a_read_whose_file_could_not_be_laid_out_can_be_tried_again(place: Path) -> None:
    ceiling = Ceiling(cached(), place, World())
    with files_at_most(MIB), pytest.raises(OSError, match="too large"):
        ceiling.read_ns(4 * MIB)
    assert ceiling.read_ns(4 * MIB) > 0


def test_ranks_share_the_bytes_and_the_last_one_gives_the_time(place: Path) -> None:
    ceiling = Ceiling(cached(), place, Ranks())
    assert ceiling.write_ns(4 * MIB) > 1_000_000_000
    assert ceiling.read_ns(4 * MIB + 1) > 1_000_000_000
    assert [file.stat().st_size for file in place.iterdir()] == [MIB + 4096]


def test_ranks_do_not_remove_each_others_files(place: Path) -> None:
    (place / "ceiling-1-read-4096").touch()
    Ceiling(cached(), place, World()).close()
    assert [file.name for file in place.iterdir()] == ["ceiling-1-read-4096"]


def test_copies_of_the_state_leave_what_is_written_random(place: Path) -> None:
    """A disk that compresses would write zeros faster than a checkpoint."""
    ceiling = Ceiling(cached(), place, World())
    ring = np.frombuffer(ceiling._ring, dtype=np.uint8)
    before = ring[: 4 * MIB].copy()
    ceiling.memory_copy_ns([memoryview(bytes(4 * MIB))])
    assert np.array_equal(ring[: 4 * MIB], before)


def test_what_is_written_is_random(place: Path) -> None:
    """A device or file system that compresses must gain nothing."""
    ring = np.frombuffer(ceilings.random_ring(), dtype=np.uint8)
    assert len(ring) == RING_BYTES
    counts = np.bincount(ring[: 16 * MIB], minlength=256)
    assert counts.min() > 0.97 * 16 * MIB / 256
    assert counts.max() < 1.03 * 16 * MIB / 256
    pages = ring[: 16 * MIB].view("V4096")
    assert len(np.unique(pages)) == len(pages), (
        "no page occurs twice, so deduplication gains nothing either"
    )
    ceilings.write_file(place / "file", memoryview(ring), 8192, cached())
    assert (place / "file").read_bytes() == ring[:8192].tobytes()


def test_a_copy_in_memory_takes_longer_for_more(place: Path) -> None:
    ceiling = Ceiling(cached(), place, World())
    small, large = (
        memoryview(np.ones(size, dtype=np.uint8)) for size in (MIB, RING_BYTES + 5 * MIB)
    )
    assert ceiling.memory_copy_ns([]) == 0
    times = [
        min(ceiling.memory_copy_ns(leaves) for _ in range(3))
        for leaves in ([small], [small, large])
    ]
    assert 0 < times[0] < times[1]
    times = [
        min(ceiling.copy_ns(size_bytes) for _ in range(3))
        for size_bytes in (0, MIB, RING_BYTES + 5 * MIB + 1)
    ]
    assert times == sorted(times)
    assert times[2] > 10 * times[1]


def test_a_copy_in_memory_copies_all_of_it(place: Path) -> None:
    ceiling = Ceiling(cached(), place, World())
    for size_bytes in (0, 1, 5 * MIB + 1, RING_BYTES, RING_BYTES + 1):
        copied = np.frombuffer(ceiling._copied, dtype=np.uint8)
        copied[:] = 0
        ceiling.copy_ns(size_bytes)
        length = min(size_bytes, RING_BYTES)
        assert np.array_equal(
            copied[:length], np.frombuffer(ceiling._ring, dtype=np.uint8)[:length]
        )
        assert not copied[length:].any()


# Calibration


@pytest.mark.usefixtures("direct", "impatient")
def test_calibration_tries_every_setting_and_takes_a_good_one(place: Path) -> None:
    found = calibrate(place, 5 * MIB + 1, not_direct=None)
    assert (found.direct, found.reason, found.bytes) == (True, "", 5 * MIB + 4096)
    tried = list(itertools.product((MIB, 4 * MIB, 16 * MIB), (1, 2, 4)))
    for operation, block_bytes, depth in (
        ("write", found.write_block_bytes, found.write_depth),
        ("read", found.read_block_bytes, found.read_depth),
    ):
        rates = {
            (p.block_bytes, p.depth): p.bytes_per_s
            for p in found.points
            if p.operation == operation
        }
        assert list(rates) == tried
        assert min(rates.values()) > 0
        assert rates[block_bytes, depth] >= 0.95 * max(rates.values())
    assert len(found.points) == 2 * len(tried)
    assert found.counts_device_reads is True
    assert list(place.iterdir()) == [], "the sweep's files are gone"


@pytest.mark.usefixtures("impatient")
def test_a_simpler_setting_is_preferred_to_one_a_little_faster(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The depth counts first, then the block. No device is so exact, so the times are made up."""
    times_ns = {(1, 1): 970, (4, 1): 1010, (16, 1): 1100, (1, 2): 1000, (4, 4): 965}
    tries = itertools.count()

    def try_ns(self: object, *where: object) -> int:
        storage = where[-1]
        assert isinstance(storage, Storage)
        usual_ns = times_ns.get((storage.write_block_bytes // MIB, storage.write_depth), 2000)
        # One try of four is lucky.
        return 1 if next(tries) % 4 == 0 else usual_ns

    monkeypatch.setattr(ceilings._Sweep, "_write_ns", try_ns)
    monkeypatch.setattr(ceilings._Sweep, "_read_ns", try_ns)
    monkeypatch.setattr(ceilings, "write_file", lambda path, *_: path.touch())
    found = calibrate(place, MIB, not_direct=None)
    assert (
        (found.write_block_bytes, found.write_depth)
        == (found.read_block_bytes, found.read_depth)
        == (4 * MIB, 1)
    )
    assert found.counts_device_reads is False, "nothing was read, so the kernel counted nothing"


def test_without_direct_io_nothing_is_swept_and_the_reason_is_kept(place: Path) -> None:
    found = calibrate(place, 5 * MIB + 1, not_direct="tmpfs keeps files in memory")
    assert (found.direct, found.reason) == (False, "tmpfs keeps files in memory")
    assert (found.points, found.counts_device_reads) == ((), False)
    through_the_cache = Storage(
        found.direct,
        found.write_block_bytes,
        found.write_depth,
        found.read_block_bytes,
        found.read_depth,
        False,
    )
    assert Ceiling(through_the_cache, place, World()).write_ns(found.bytes) > 0


def test_the_median_of_durations_is_a_whole_number() -> None:
    assert ceilings.median_ns([1, 2]) == 1
    assert ceilings.median_ns(iter([5, 1, 3])) == 3


# An independent tool

# Requests from memory in small pages take up to a third longer here and there, and the ceiling's
# memory is in huge ones. So fio gets huge ones too: its buffers are malloc's, and glibc asks the
# kernel for huge pages when this tells it to.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
TAKES_TUNABLE = (2, 35)


def why_fio_cannot_be_compared() -> str | None:
    if shutil.which("fio") is None:
        return "fio is not installed"
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < TAKES_TUNABLE:
        return "this C library cannot give fio the huge pages that a ceiling has"
    return None


def fio_ns(operation: str, path: Path) -> int:
    """Return the time in which fio writes `path` anew and flushes it, or reads it.

    fio rounds it up to milliseconds.
    """
    argv = [
        "fio",
        "--name=ceiling",
        f"--filename={path}",
        f"--rw={operation}",
        f"--size={TOTAL_BYTES}",
        f"--bs={BLOCK_BYTES}",
        f"--iodepth={DEPTH}",
        "--ioengine=libaio",
        "--direct=1",
        "--end_fsync=1",
        "--fallocate=none",
        "--iomem_align=2m",  # else a huge page holds the ends of two requests
        # else each start calibrates a clock for longer than the transfer takes
        "--clocksource=clock_gettime",
        "--output-format=json",
    ]
    done = subprocess.run(
        argv, env=os.environ | HUGE_PAGES, capture_output=True, text=True, check=True, timeout=60
    )
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["error"], job[operation]["io_bytes"]) == (0, TOTAL_BYTES)
    return int(job[operation]["runtime"]) * 1_000_000


def paired_ratios(ours: Callable[[], int], theirs: Callable[[], int]) -> list[float]:
    """Return our time over theirs, measured in pairs. Each side is first in every other pair."""
    ratios = []
    for pair in range(PAIRS):
        first, second = (ours, theirs) if pair % 2 else (theirs, ours)
        times = {first: first(), second: second()}
        ratios.append(times[ours] / times[theirs])
    return ratios


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("operation", ["write", "read"])
def test_fio_needs_as_long_for_the_same_bytes(place: Path, operation: str) -> None:
    """Other load on the disk may favour one side for a whole series of a second or two.

    So the test fails only if the interval over several series excludes equal times.
    """
    reason = why_fio_cannot_be_compared()
    if reason is not None:
        pytest.skip(reason)
    ceiling = Ceiling(settings(), place, World())

    def fio() -> int:
        path = place / "fio" if operation == "write" else next(place.glob("ceiling-0-read-*"))
        try:
            return fio_ns(operation, path)
        finally:
            if operation == "write":
                path.unlink()

    def own() -> int:
        return (
            ceiling.write_ns(TOTAL_BYTES) if operation == "write" else ceiling.read_ns(TOTAL_BYTES)
        )

    own()  # warms up, and leaves the file that both read
    every: list[float] = []
    for _ in range(SERIES):
        found = paired_ratios(own, fio)
        print(
            f"{operation}: the ceiling's time over fio's",
            ", ".join(f"{ratio:.2f}" for ratio in sorted(found)),
        )
        if 0.85 <= statistics.median(found) <= 1.15:
            return
        every += found
    ratio = of_differences(np.log(every), 0.99)
    text = (
        f"the {operation} ceiling takes {ratio.value:.2f} [{ratio.low:.2f} to {ratio.high:.2f}] "
        "times as long as fio"
    )
    if ratio.high < 0.85 or ratio.low > 1.15:
        pytest.fail(text)
    pytest.skip(f"{text}: this disk is too noisy to tell")


def test_the_driver_waits_for_as_many_transfers_as_a_sweep_has() -> None:
    """It cannot ask the worker's module, and a longer sweep would run into its time limit."""
    assert 2 * len(ceilings._SETTINGS) * ceilings._SWEEP_ROUNDS == jobs.SWEEP_TRANSFERS
