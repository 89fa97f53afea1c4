"""Ceilings: how fast this machine moves the same bytes, in the same place and at the same time.

Every sample is compared with them. A ceiling writes from a ring of private memory in huge pages, no
larger than `RING_BYTES`, and copies in memory have another ring. So the harness stays small beside
the largest state. The ring holds random bytes, because a device or file system that compresses
would be faster on others.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
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
_CHECK_ROUNDS = 3
Setting = tuple[int, int]
"""A number of bytes a block, and how many blocks are in flight."""
_SETTINGS: tuple[Setting, ...] = tuple(itertools.product(_SWEEP_BLOCKS_BYTES, _SWEEP_DEPTHS))
# A setting is good from this share of the fastest one's speed. The medians of equal settings differ
# by as much.
_GOOD_SHARE = 0.95


class Ceiling:
    """Raw transfers of a given number of bytes, of which all ranks move their shares together."""

    def __init__(self, storage: Storage, folder: Path, world: World) -> None:
        self.storage = storage
        self._folder = folder
        self._world = world
        before = usage.begin()
        self._ring = random_ring()
        self.peak_bytes = usage.since(before).peak_rss_bytes

    def write_ns(self, total_bytes: int) -> int:
        """Write `total_bytes` into new files and flush files and directory.

        Return the time of the last rank.
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

    def write_share(self, total_bytes: int) -> None:
        """Write this rank's share into a new file, flush and remove it, without other ranks."""
        path = self._path("beside")
        try:
            write_file(path, self._ring, self._share(total_bytes), self.storage)
            sync_tree(path)
        finally:
            remove_tree(path)

    def read_ns(self, total_bytes: int) -> int:
        """Read `total_bytes` that are not in the page cache. Return the time of the last rank."""
        share_bytes = self._share(total_bytes)
        path = self._path(f"read-{share_bytes}")
        # The file is too short where the disk was full the last time.
        if not path.exists() or path.stat().st_size < share_bytes:
            write_file(path, self._ring, share_bytes, self.storage)
        drop_from_cache(path)
        self._world.barrier()
        begin = now_ns()
        read_file(path, self._ring, share_bytes, self.storage)
        return self._world.maximum(now_ns() - begin)

    def memory_copy_ns(self, leaves: Iterable[memoryview]) -> int:
        """Return the time of one single-threaded copy of the leaves' bytes into a ring.

        The copy goes on at the ring's beginning when it has come to its end. It is another ring
        than the one that ceilings write, because that one must stay random.
        """
        ring = np.frombuffer(self._copied, dtype=np.uint8)
        elapsed_ns = 0
        position = 0
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
        """Return the time of one single-threaded copy of so many bytes in memory.

        The copy is between two rings, because listing a framework's leaves can take longer than the
        sample. Its parts are as large as large leaves are.
        """
        source = np.frombuffer(self._ring, dtype=np.uint8)
        target = np.frombuffer(self._copied, dtype=np.uint8)
        begin = now_ns()
        for start in range(0, size_bytes, _COPY_BYTES):
            position = start % RING_BYTES
            part = slice(position, position + min(_COPY_BYTES, size_bytes - start))
            np.copyto(target[part], source[part])
        return now_ns() - begin

    @cached_property
    def _copied(self) -> memoryview:
        """The ring that is copied to. Only processes that copy have it."""
        ring = aligned_buffer(RING_BYTES)
        # The first touch of a page is slow, and must not be inside the clock.
        np.frombuffer(ring, dtype=np.uint8)[::ALIGNMENT] = 0
        return ring

    def close(self) -> None:
        """Remove the files that reads were measured on."""
        for path in self._folder.glob(f"ceiling-{self._world.rank}-*"):
            remove_tree(path)

    def _share(self, total_bytes: int) -> int:
        """Return the bytes that this rank moves: whole blocks, the same number on every rank."""
        return round_up(-(-total_bytes // self._world.size))

    def _path(self, purpose: str) -> Path:
        return self._folder / f"ceiling-{self._world.rank}-{purpose}"


@cache
def random_ring() -> memoryview:
    """Return aligned memory of `RING_BYTES` full of random bytes. A process makes it once."""
    ring = aligned_buffer(RING_BYTES)
    largest = np.iinfo(np.uint64).max
    words = np.random.default_rng(0).integers(0, largest, RING_BYTES // 8, dtype=np.uint64)
    np.frombuffer(ring, dtype=np.uint64)[:] = words
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
    """All settings, tried in one directory with the same number of bytes.

    The settings take turns, so that other load on the device hits all of them alike. Each is judged
    by its median. Single tries scatter by more than the settings differ, so the fastest try of all
    would belong to a lucky setting and not to a good one.
    """

    folder: Path
    ring: memoryview
    total_bytes: int
    rounds: int

    def writes(self, settings: Sequence[Setting]) -> list[SweepPoint]:
        """Have each setting write a new file and flush it."""
        return self._in_turns("write", settings, self._write_ns)

    def reads(self, settings: Sequence[Setting], path: Path) -> list[SweepPoint]:
        """Have each setting read a file that exists already."""
        return self._in_turns("read", settings, partial(self._read_ns, path))

    def _in_turns(
        self,
        operation: Literal["write", "read"],
        settings: Sequence[Setting],
        try_ns: Callable[[Storage], int],
    ) -> list[SweepPoint]:
        times_ns: dict[Setting, list[int]] = {setting: [] for setting in settings}
        for _ in range(self.rounds):
            wait_until_quiet(self.folder)
            for setting in settings:
                times_ns[setting].append(try_ns(_storage(*setting)))
        points = []
        for (block_bytes, depth), tries_ns in times_ns.items():
            bytes_per_s = self.total_bytes * 1e9 / median_ns(tries_ns)
            points.append(SweepPoint(operation, block_bytes, depth, bytes_per_s))
        return points

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


def calibrate(
    folder: Path, total_bytes: int, not_direct: str | None, taken: Storage | None = None
) -> CalibrationRecord:
    """Return the block size and depth at which `folder` takes direct I/O of `total_bytes` fastest.

    `not_direct` says why `folder` takes no direct I/O. Then nothing is tried, and every ceiling
    goes through the page cache. If requests were `taken` from an earlier sweep, only they are
    tried, a few times. Then the record has no rounds, because it is no sweep.
    """
    total_bytes = round_up(total_bytes, ALIGNMENT)
    if not_direct:
        return _uncalibrated(total_bytes, not_direct)
    rounds = _CHECK_ROUNDS if taken else _SWEEP_ROUNDS
    to_write = [(taken.write_block_bytes, taken.write_depth)] if taken else _SETTINGS
    to_read = [(taken.read_block_bytes, taken.read_depth)] if taken else _SETTINGS
    sweep = _Sweep(folder, random_ring(), total_bytes, rounds)
    write_points = sweep.writes(to_write)
    path = folder / "sweep-read"
    write_file(path, sweep.ring, total_bytes, _storage(_MIB, 1))
    sync_tree(path)
    before_bytes, _ = usage.transferred_bytes()
    read_points = sweep.reads(to_read, path)
    after_bytes, _ = usage.transferred_bytes()
    remove_tree(path)
    bytes_of_all_reads = total_bytes * len(to_read) * rounds
    write = _fastest(write_points)
    read = _fastest(read_points)
    return CalibrationRecord(
        kind="calibration",
        direct=True,
        reason="",
        bytes=total_bytes,
        write_block_bytes=write.block_bytes,
        write_depth=write.depth,
        read_block_bytes=read.block_bytes,
        read_depth=read.depth,
        counts_device_reads=after_bytes - before_bytes >= bytes_of_all_reads,
        points=(*write_points, *read_points),
        rounds=0 if taken else rounds,
    )


def median_ns(times_ns: Iterable[int]) -> int:
    """Return the median of durations, as whole nanoseconds."""
    return int(statistics.median(times_ns))


def _storage(block_bytes: int, depth: int) -> Storage:
    return Storage(
        direct=True,
        write_block_bytes=block_bytes,
        write_depth=depth,
        read_block_bytes=block_bytes,
        read_depth=depth,
        counts_device_reads=True,
    )


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
    """Return the simplest setting that is not far from the best.

    A deeper queue must earn its threads, and smaller requests their number.
    """
    best = max(point.bytes_per_s for point in points)
    good = [point for point in points if point.bytes_per_s >= _GOOD_SHARE * best]
    return min(good, key=lambda point: (point.depth, -point.block_bytes))
