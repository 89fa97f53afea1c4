"""Direct file I/O from aligned memory: the shared engine of everything that wants to write at the speed of the device.

Standard library only. O_DIRECT asks that addresses, offsets and lengths are multiples of the
device's logical block; `ALIGNMENT` serves them all. Buffers are private anonymous memory with huge
pages asked for: shared mappings in 4 KiB pages write at rates that differ from buffer to buffer.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

ALIGNMENT = 4096
HUGE_PAGE_BYTES = 2 << 20

Transfer = Callable[[int, int], None]  # (offset, length) of one block, in bytes


def round_up(size_bytes: int, multiple: int = ALIGNMENT) -> int:
    """Return the smallest multiple that holds `size_bytes`."""
    return -(-size_bytes // multiple) * multiple


def aligned_buffer(size_bytes: int) -> memoryview:
    """Return zeroed writable memory, aligned to huge pages and backed by them where the kernel has some."""
    # kernels before 6.7 align to small pages alone
    room_bytes = round_up(max(size_bytes, 1), HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES
    mapping = mmap.mmap(-1, room_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except OSError as error:  # a kernel without transparent huge pages: ordinary pages do
            if error.errno != errno.EINVAL:
                raise
    start = -ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % HUGE_PAGE_BYTES
    return memoryview(mapping)[start : start + size_bytes]


def open_for_write(path: Path, direct: bool = True) -> int:
    """Create `path` and return its descriptor."""
    return os.open(
        path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | (os.O_DIRECT if direct else 0), 0o644
    )


def open_for_read(path: Path, direct: bool = True) -> int:
    """Open `path` for reading and return its descriptor."""
    return os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))


def write_blocks(
    descriptor: int, buffer: memoryview, total_bytes: int, block_bytes: int, depth: int
) -> None:
    """Write `total_bytes` from the file's start with `depth` requests in flight, taking `buffer` round and round.

    A buffer that holds everything is written once, in order; a smaller one (a whole number of
    blocks) is repeated.
    """
    _check_ring(buffer, total_bytes, block_bytes)

    def write(offset: int, length: int) -> None:
        start = offset % len(buffer)
        write_all(descriptor, buffer[start : start + length], offset)

    _run(write, total_bytes, block_bytes, depth)


def read_blocks(
    descriptor: int, buffer: memoryview, total_bytes: int, block_bytes: int, depth: int
) -> None:
    """Read `total_bytes` from the file's start with `depth` requests in flight, filling `buffer` round and round."""
    _check_ring(buffer, total_bytes, block_bytes)

    def read(offset: int, length: int) -> None:
        start = offset % len(buffer)
        read_all(descriptor, buffer[start : start + length], offset)

    _run(read, total_bytes, block_bytes, depth)


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, however many system calls that takes."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


def read_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Fill `data` from `offset`; raise EOFError when the file ends before."""
    done = 0
    while done < len(data):
        count = os.preadv(descriptor, [data[done:]], offset + done)
        if count == 0:
            raise EOFError(f"the file ends at byte {offset + done}, {len(data) - done} bytes early")
        done += count


def sync_directory(path: Path) -> None:
    """Flush a directory, so that the names in it survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Make a directory and those above it that are missing, so that they survive a power loss."""
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def _check_ring(buffer: memoryview, total_bytes: int, block_bytes: int) -> None:
    """A block across the end of a buffer that is used again would be cut short, and nobody would notice."""
    if len(buffer) < total_bytes and len(buffer) % block_bytes:
        raise ValueError(
            f"{len(buffer)} bytes are no whole number of blocks of {block_bytes} bytes, and are to be used again"
        )


def _run(transfer: Transfer, total_bytes: int, block_bytes: int, depth: int) -> None:
    """Call `transfer` for every block, from `depth` threads; raise the first error of any of them."""
    blocks = _Blocks(total_bytes, block_bytes)
    if depth == 1:
        for offset, length in blocks:
            transfer(offset, length)
        return
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for offset, length in blocks:
                transfer(offset, length)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class _Blocks:
    """The blocks of a transfer in file order, handed out to whichever thread asks next."""

    def __init__(self, total_bytes: int, block_bytes: int) -> None:
        self._ranges = iter(range(0, total_bytes, block_bytes))
        self._total_bytes = total_bytes
        self._block_bytes = block_bytes
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self

    def __next__(self) -> tuple[int, int]:
        with self._lock:
            offset = next(self._ranges)
        return offset, min(self._block_bytes, self._total_bytes - offset)
