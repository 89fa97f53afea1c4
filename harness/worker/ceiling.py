"""How fast this machine moves the same bytes, here and now: what every sample is compared with.

A ceiling writes from a ring of private huge-page memory no larger than `RING_BYTES`, and copies in
memory have another, so that the harness stays small beside the largest state. What it writes is
random: a device or file system that compresses gets no gift.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np

from adapters.shared.directio import (
    ALIGNMENT,
    aligned_buffer,
    open_for_read,
    open_for_write,
    read_blocks,
    round_up,
    write_blocks,
)
from harness.wire.case import Storage
from harness.wire.records import CalibrationRecord, SweepPoint
from harness.worker import usage
from harness.worker.clock import now_ns
from harness.worker.storage import drop_from_cache, remove_tree, sync_tree, wait_until_quiet
from harness.worker.world import World

RING_BYTES = 64 << 20
_MIB = 1 << 20
_COPY_BYTES = 4 * _MIB
_SWEEP_BLOCKS_BYTES = (1 * _MIB, 4 * _MIB, 16 * _MIB)
_SWEEP_DEPTHS = (1, 2, 4)
_SWEEP_ROUNDS = 7
_SETTINGS = tuple(itertools.product(_SWEEP_BLOCKS_BYTES, _SWEEP_DEPTHS))  # (block_bytes, depth)
# of the fastest setting's speed: medians of the rounds differ by as much for nothing
_GOOD_SHARE = 0.95


class Ceiling:
    """Raw transfers of a given number of bytes, with all ranks of the world moving their share together."""

    def __init__(self, storage: Storage, folder: Path, world: World) -> None:
        self.storage = storage
        self._folder = folder
        self._world = world
        before = usage.begin()
        self._ring = random_ring()
        self.peak_bytes = usage.since(before).peak_rss_bytes

    def write_ns(self, total_bytes: int) -> int:
        """Time to make `total_bytes` durable in new files: write, fsync of file and directory.

        The last rank's time.
        """
        path = self._path("write")
        try:
            self._world.barrier()
            begin = now_ns()
            write_file(path, self._ring, self._share(total_bytes), self.storage)
            sync_tree(path)
            return self._world.maximum(now_ns() - begin)
        finally:
            remove_tree(path)

    def read_ns(self, total_bytes: int) -> int:
        """Time to read `total_bytes` that are not in the page cache. The last rank's time."""
        path = self._path(f"read-{self._share(total_bytes)}")
        # shorter where the disk was full the last time
        if not path.exists() or path.stat().st_size < self._share(total_bytes):
            write_file(path, self._ring, self._share(total_bytes), self.storage)
        drop_from_cache(path)
        self._world.barrier()
        begin = now_ns()
        read_file(path, self._ring, self._share(total_bytes), self.storage)
        return self._world.maximum(now_ns() - begin)

    def memory_copy_ns(self, leaves: Iterable[memoryview]) -> int:
        """Time of one single-threaded copy of the leaves' bytes into the ring, each part of it used round and round."""
        ring = np.frombuffer(self._ring, dtype=np.uint8)
        elapsed_ns = position = 0
        for leaf in leaves:
            source = np.frombuffer(leaf, dtype=np.uint8)
            for start in range(0, len(source), len(ring)):
                part = source[start : start + len(ring)]
                if position + len(part) > len(ring):
                    position = 0
                begin = now_ns()
                np.copyto(ring[position : position + len(part)], part)
                elapsed_ns += now_ns() - begin
                position += len(part)
        return elapsed_ns

    def copy_ns(self, size_bytes: int) -> int:
        """Time of one single-threaded copy of so many bytes in memory, in parts as large as large leaves are.

        Round and round from the ring to another one: to ask a framework for its leaves may take
        longer than the sample.
        """
        source, target = (
            np.frombuffer(ring, dtype=np.uint8) for ring in (self._ring, self._copied)
        )
        begin = now_ns()
        for start in range(0, size_bytes, _COPY_BYTES):
            place = start % RING_BYTES
            part = slice(place, place + min(_COPY_BYTES, size_bytes - start))
            np.copyto(target[part], source[part])
        return now_ns() - begin

    @cached_property
    def _copied(self) -> memoryview:
        """What the ring is copied to: only in processes that ask for it."""
        ring = aligned_buffer(RING_BYTES)
        np.frombuffer(ring, dtype=np.uint8)[::ALIGNMENT] = 0  # the first touch of a page is slow
        return ring

    def close(self) -> None:
        """Remove the files that reads were measured on."""
        for path in self._folder.glob(f"ceiling-{self._world.rank}-*"):
            remove_tree(path)

    def _share(self, total_bytes: int) -> int:
        return round_up(-(-total_bytes // self._world.size))

    def _path(self, purpose: str) -> Path:
        return self._folder / f"ceiling-{self._world.rank}-{purpose}"


def random_ring() -> memoryview:
    """Return aligned memory of `RING_BYTES` full of random bytes."""
    ring = aligned_buffer(RING_BYTES)
    np.frombuffer(ring, dtype=np.uint64)[:] = np.random.default_rng(0).integers(
        0, np.iinfo(np.uint64).max, RING_BYTES // 8, dtype=np.uint64
    )
    return ring


def write_file(path: Path, ring: memoryview, total_bytes: int, storage: Storage) -> None:
    """Write a new file of `total_bytes`, without flushing it."""
    descriptor = open_for_write(path, storage.direct)
    try:
        write_blocks(descriptor, ring, total_bytes, storage.write_block_bytes, storage.write_depth)
    finally:
        os.close(descriptor)


def read_file(path: Path, ring: memoryview, total_bytes: int, storage: Storage) -> None:
    """Read the first `total_bytes` of a file."""
    descriptor = open_for_read(path, storage.direct)
    try:
        read_blocks(descriptor, ring, total_bytes, storage.read_block_bytes, storage.read_depth)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _Sweep:
    """All settings, tried in one directory with so many bytes.

    They take turns, so that what neighbours do on the device meanwhile hits them alike, and each is
    judged by its median: single tries scatter by more than the settings differ, and of many
    settings the luckiest try is no measure.
    """

    folder: Path
    ring: memoryview
    total_bytes: int

    def writes(self) -> list[SweepPoint]:
        """Each setting writes a new file and flushes it."""
        return self._in_turns("write", self._write_ns)

    def reads(self, path: Path) -> list[SweepPoint]:
        """Each setting reads a file that is there already."""
        return self._in_turns("read", partial(self._read_ns, path))

    def _in_turns(
        self, operation: Literal["write", "read"], try_ns: Callable[[Storage], int]
    ) -> list[SweepPoint]:
        times_ns: dict[tuple[int, int], list[int]] = {setting: [] for setting in _SETTINGS}
        for _ in range(_SWEEP_ROUNDS):
            wait_until_quiet(self.folder)
            for setting in _SETTINGS:
                times_ns[setting].append(try_ns(_storage(*setting)))
        return [
            SweepPoint(operation, *setting, bytes_per_s=self.total_bytes * 1e9 / median_ns(found))
            for setting, found in times_ns.items()
        ]

    def _write_ns(self, storage: Storage) -> int:
        path = self.folder / "sweep-write"
        begin = now_ns()
        write_file(path, self.ring, self.total_bytes, storage)
        sync_tree(path)
        end = now_ns()
        remove_tree(path)
        return end - begin

    def _read_ns(self, path: Path, storage: Storage) -> int:
        begin = now_ns()
        read_file(path, self.ring, self.total_bytes, storage)
        return now_ns() - begin


def calibrate(folder: Path, total_bytes: int, not_direct: str | None) -> CalibrationRecord:
    """Find the block size and depth at which `folder` takes direct writes and reads of `total_bytes` fastest.

    `not_direct` says why direct I/O is not to be had here; then nothing is swept and every ceiling
    goes through the page cache.
    """
    total_bytes = round_up(total_bytes, ALIGNMENT)
    if not_direct:
        return _uncalibrated(total_bytes, not_direct)
    sweep = _Sweep(folder, random_ring(), total_bytes)
    writes = sweep.writes()
    path = folder / "sweep-read"
    write_file(path, sweep.ring, total_bytes, _storage(_MIB, 1))
    sync_tree(path)
    before_bytes, _ = usage.transferred_bytes()
    reads = sweep.reads(path)
    after_bytes, _ = usage.transferred_bytes()
    remove_tree(path)
    write, read = _fastest(writes), _fastest(reads)
    return CalibrationRecord(
        kind="calibration",
        direct=True,
        reason="",
        bytes=total_bytes,
        write_block_bytes=write.block_bytes,
        write_depth=write.depth,
        read_block_bytes=read.block_bytes,
        read_depth=read.depth,
        counts_device_reads=after_bytes - before_bytes
        >= total_bytes * len(_SETTINGS) * _SWEEP_ROUNDS,
        points=(*writes, *reads),
        rounds=_SWEEP_ROUNDS,
    )


def median_ns(times_ns: Iterable[int]) -> int:
    """The median of durations, as whole nanoseconds."""
    return int(statistics.median(times_ns))


def _storage(block_bytes: int, depth: int) -> Storage:
    return Storage(True, block_bytes, depth, block_bytes, depth, counts_device_reads=True)


def _uncalibrated(total_bytes: int, reason: str) -> CalibrationRecord:
    return CalibrationRecord(
        kind="calibration",
        direct=False,
        reason=reason,
        bytes=total_bytes,
        write_block_bytes=_MIB,
        write_depth=1,
        read_block_bytes=_MIB,
        read_depth=1,
        counts_device_reads=False,
        points=(),
    )


def _fastest(points: list[SweepPoint]) -> SweepPoint:
    """The simplest setting not far from the best: a deeper queue must earn its threads, and small requests their number."""
    best = max(point.bytes_per_s for point in points)
    good = [point for point in points if point.bytes_per_s >= _GOOD_SHARE * best]
    return min(good, key=lambda point: (point.depth, -point.block_bytes))
