"""Measures how fast two processes read 205 MB each from a file in memory, the floor of a restore.

Run it with `python tests/floor_of_restore.py`. It prints the median of nine reads of each process.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import xxhash

SIZE_BYTES = 205_000_000
BLOCK_BYTES = 4 << 20
READS = 9
PROCESSES = 2
FILE = Path("/dev/shm/ckptbench-floor")


def read_all(target: memoryview, with_checksum: bool) -> None:
    """Read the file into memory in blocks, and checksum each block where that is asked for."""
    descriptor = os.open(FILE, os.O_RDONLY)
    try:
        for offset in range(0, SIZE_BYTES, BLOCK_BYTES):
            block = target[offset : offset + BLOCK_BYTES]
            os.preadv(descriptor, [block], offset)
            if with_checksum:
                xxhash.xxh3_64_intdigest(block)
    finally:
        os.close(descriptor)


def measure(together: Barrier, with_checksum: bool) -> None:
    """Read at the same time as the other process, and print the median."""
    memory = np.empty(SIZE_BYTES, np.uint8)
    # The first touch of a page is slow.
    memory[::4096] = 1
    seconds = []
    for _ in range(READS):
        together.wait()
        begin_s = time.perf_counter()
        read_all(memoryview(memory), with_checksum)
        seconds.append(time.perf_counter() - begin_s)
    what = "with checksums" if with_checksum else "without checksums"
    print(f"{what}: {1e3 * statistics.median(seconds):.0f} ms", flush=True)


def main() -> None:
    """Measure without checksums, and then with them."""
    try:
        FILE.write_bytes(os.urandom(SIZE_BYTES))
        for with_checksum in (False, True):
            together = multiprocessing.Barrier(PROCESSES)
            processes = [
                multiprocessing.Process(target=measure, args=(together, with_checksum))
                for _ in range(PROCESSES)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
    finally:
        FILE.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
