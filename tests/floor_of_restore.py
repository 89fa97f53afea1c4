"""Measures how fast two processes get 205 MB each from a file in memory, the floor of a restore.

Run it with `.venvs/harness/bin/python tests/floor_of_restore.py`. It prints, for each of four ways,
the median over nine restores of the slower process, and that of the optimizer's first update.
"""

from __future__ import annotations

import mmap
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from adapters.deepfreeze import streaming

SIZE_BYTES = 205_000_000
READ_BYTES = 4 << 20
COPY_BYTES = 1 << 20  # what was just copied is still in the processor's cache
RESTORES = 9
PROCESSES = 2
FILE = Path("/dev/shm/ckptbench-floor")

Values = NDArray[np.float32]
Restore = Callable[[Values, memoryview], Values]
"""Returns the restored values, given memory for them and the mapped file."""


def read(values: Values, file: memoryview) -> Values:
    """Read the file into the memory, as torch.load does."""
    target = memoryview(values).cast("B")
    with FILE.open("rb", buffering=0) as opened:
        for start in range(0, SIZE_BYTES, READ_BYTES):
            opened.readinto(target[start : start + READ_BYTES])
    return values


def copy(values: Values, file: memoryview) -> Values:
    """Copy the file past the caches."""
    _copy(values, file, with_checksum=False)
    return values


def copy_checked(values: Values, file: memoryview) -> Values:
    """Copy the file past the caches, and checksum each block, as DeepFreeze does."""
    _copy(values, file, with_checksum=True)
    return values


def share_checked(values: Values, file: memoryview) -> Values:
    """Copy nothing yet. Checksum the file, and let the kernel copy each page that is changed."""
    with FILE.open("rb") as opened:
        private = mmap.mmap(opened.fileno(), SIZE_BYTES, access=mmap.ACCESS_COPY)
    shown = memoryview(private)
    for start in range(0, SIZE_BYTES, COPY_BYTES):
        xxhash.xxh3_64_intdigest(shown[start : start + COPY_BYTES])
    return np.frombuffer(private, np.float32)


def _copy(values: Values, file: memoryview, with_checksum: bool) -> None:
    target = values.view(np.uint8)
    source = np.frombuffer(file, np.uint8)
    for start in range(0, SIZE_BYTES, COPY_BYTES):
        block = source[start : start + COPY_BYTES]
        streaming.copy(target[start : start + COPY_BYTES], block)
        if with_checksum:
            xxhash.xxh3_64_intdigest(block)


def measure(together: Barrier, restore: Restore, times: SimpleQueue[tuple[float, float]]) -> None:
    """Restore at the same time as the other process, and put the medians, in seconds.

    The second one is that of an update of all values after the restore.
    """
    streaming.compiled()
    memory = np.zeros(SIZE_BYTES // 4, np.float32)
    with FILE.open("rb") as opened:
        file = memoryview(mmap.mmap(opened.fileno(), SIZE_BYTES, access=mmap.ACCESS_READ))
    # The first touch of a page is slow.
    memory[::1024] = 1
    np.frombuffer(file, np.uint8)[::4096].max()
    restores_s, updates_s = [], []
    for _ in range(RESTORES):
        together.wait()
        begin_s = time.perf_counter()
        values = restore(memory, file)
        restored_s = time.perf_counter()
        values *= 0.9
        updates_s.append(time.perf_counter() - restored_s)
        restores_s.append(restored_s - begin_s)
    times.put((statistics.median(restores_s), statistics.median(updates_s)))


def report(restore: Restore) -> None:
    """Measure one way in all processes, and print the times of the slower one."""
    together = multiprocessing.Barrier(PROCESSES)
    times: SimpleQueue[tuple[float, float]] = multiprocessing.SimpleQueue()
    processes = [
        multiprocessing.Process(target=measure, args=(together, restore, times))
        for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    restore_s, update_s = max(times.get() for _ in processes)
    for process in processes:
        process.join()
    print(
        f"{restore.__name__}: {1e3 * restore_s:.0f} ms, first update {1e3 * update_s:.0f} ms",
        flush=True,
    )


def main() -> None:
    """Measure each way."""
    rng = np.random.default_rng(0)
    try:
        FILE.write_bytes(rng.random(SIZE_BYTES // 4, np.float32).tobytes())
        for restore in (read, copy, copy_checked, share_checked):
            report(restore)
    finally:
        FILE.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
