"""Direct file I/O from aligned memory, for everything that wants to write at the speed of the disk.

This needs the standard library only. O_DIRECT wants addresses, offsets and lengths that are
multiples of the device's logical block. `ALIGNMENT` is a multiple of every such block. Buffers are
private anonymous memory with huge pages, because shared mappings in pages of 4 KiB are written at
rates that differ from buffer to buffer.
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

Transfer = Callable[[int, int], None]
"""Transfers one block, given its offset in the file and its length, in bytes."""


def round_up(size_bytes: int, multiple: int = ALIGNMENT) -> int:
    """Return the smallest multiple of `multiple` that is not below `size_bytes`."""
    return -(-size_bytes // multiple) * multiple


def aligned_buffer(size_bytes: int) -> memoryview:
    """Return zeroed writable memory that begins where a huge page can.

    The kernel backs it with huge pages if it has some.
    """
    # Kernels before 6.7 align a mapping to small pages only.
    room_bytes = round_up(max(size_bytes, 1), HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES
    mapping = mmap.mmap(-1, room_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except OSError as error:
            # A kernel without transparent huge pages refuses this. Ordinary pages are good enough.
            if error.errno != errno.EINVAL:
                raise
    start = -ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % HUGE_PAGE_BYTES
    return memoryview(mapping)[start : start + size_bytes]


def give_back(buffer: memoryview) -> None:
    """Give the pages of an aligned buffer back to the kernel, although somebody may refer to it.

    A kept error refers to the variables of all functions that it came through, and a cycle of
    references is only found by a collection. The bytes of the buffer are zeros after that.
    """
    # `obj` is the mapping below the view, which the type of a view does not say.
    buffer.obj.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def open_for_write(path: Path, direct: bool = True) -> int:
    """Create an empty file for writing and return its descriptor."""
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
    return os.open(path, flags | (os.O_DIRECT if direct else 0), 0o644)


def open_for_read(path: Path, direct: bool = True) -> int:
    """Open a file for reading and return its descriptor."""
    return os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))


def direct_or_buffered(open_file: Callable[[Path, bool], int], path: Path, direct: bool) -> int:
    """Open a file with one of the functions above and return its descriptor.

    A file system that refuses direct I/O, such as one in memory, gets ordinary I/O.
    """
    try:
        return open_file(path, direct)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        return open_file(path, False)


def write_blocks(
    descriptor: int, buffer: memoryview, total_bytes: int, block_bytes: int, depth: int
) -> None:
    """Write `total_bytes` from the start of the file, with `depth` requests in flight.

    A buffer that holds everything is written once, in order. A smaller one must be a whole number
    of blocks, and is written again and again.
    """
    _check_ring(buffer, total_bytes, block_bytes)

    def write(offset: int, length: int) -> None:
        start = offset % len(buffer)
        write_all(descriptor, buffer[start : start + length], offset)

    _run(write, total_bytes, block_bytes, depth)


def read_blocks(
    descriptor: int, buffer: memoryview, total_bytes: int, block_bytes: int, depth: int
) -> None:
    """Read `total_bytes` from the start of the file, with `depth` requests in flight.

    A buffer that is smaller must be a whole number of blocks, and is filled again and again.
    """
    _check_ring(buffer, total_bytes, block_bytes)

    def read(offset: int, length: int) -> None:
        start = offset % len(buffer)
        read_all(descriptor, buffer[start : start + length], offset)

    _run(read, total_bytes, block_bytes, depth)


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, by as many system calls as that takes."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


def read_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Fill `data` from `offset`. Raise EOFError if the file ends before that."""
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
    """Make a directory and all missing ones above it, so that they survive a power loss."""
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def _check_ring(buffer: memoryview, total_bytes: int, block_bytes: int) -> None:
    """Raise ValueError if a block would cross the end of a buffer that is used again.

    Such a block would be cut short, and nobody would notice.
    """
    if len(buffer) < total_bytes and len(buffer) % block_bytes:
        raise ValueError(
            f"a buffer of {len(buffer)} bytes is used again for {total_bytes} bytes, but it is not "
            f"a whole number of blocks of {block_bytes} bytes; take another size for either"
        )


def _run(transfer: Transfer, total_bytes: int, block_bytes: int, depth: int) -> None:
    """Call `transfer` for every block, from `depth` threads. Raise the first error of any."""
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
            blocks.stop()

    threads = [threading.Thread(target=work) for _ in range(depth)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        # After an interrupt, the caller closes the file. Its number may then be another file's.
        blocks.stop()
        for thread in threads:
            if thread.is_alive():
                thread.join()
    if errors:
        raise errors[0]


class _Blocks:
    """The blocks of a transfer in file order. Each goes to the thread that asks next."""

    def __init__(self, total_bytes: int, block_bytes: int) -> None:
        self._offsets = iter(range(0, total_bytes, block_bytes))
        self._total_bytes = total_bytes
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._has_stopped = False

    def stop(self) -> None:
        """Hand out no more blocks."""
        with self._lock:
            self._has_stopped = True

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self

    def __next__(self) -> tuple[int, int]:
        with self._lock:
            if self._has_stopped:
                raise StopIteration
            offset = next(self._offsets)
        return offset, min(self._block_bytes, self._total_bytes - offset)
