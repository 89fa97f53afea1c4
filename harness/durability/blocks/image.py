"""The bytes of a disk in a file with holes: copied fast, and changed by entries of a log."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from harness.durability.blocks.log import Entry


def create(image: Path, size_bytes: int) -> None:
    """Make a file of zeros that takes no room yet."""
    with image.open("wb") as file:
        file.truncate(size_bytes)


def copy(source: Path, target: Path) -> None:
    """Give a file the bytes of another one, and holes where that has holes.

    The target stays the same file, so that a loop device of it sees the new bytes.
    """
    with source.open("rb") as read, target.open("ab") as written:
        size_bytes = os.fstat(read.fileno()).st_size
        # To cut a file to nothing is the cheapest way to make holes of all that was in it.
        written.truncate(0)
        written.truncate(size_bytes)
    with source.open("rb") as read, target.open("rb+") as written:
        for begin, end in _extents(read.fileno(), size_bytes):
            _copy_range(read.fileno(), written.fileno(), begin, end)


def apply(entries: list[Entry], log: Path, image: Path) -> None:
    """Make the writes of a log in a file, in the order of the list."""
    with log.open("rb") as read, image.open("rb+") as written:
        for entry in entries:
            payload = os.pread(read.fileno(), entry.length, entry.at)
            os.pwrite(written.fileno(), payload, entry.offset)


def _extents(descriptor: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where the parts of a file begin and end that are no holes."""
    end = 0
    while end < size_bytes:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end


def _copy_range(source: int, target: int, begin: int, end: int) -> None:
    os.lseek(target, begin, os.SEEK_SET)
    while begin < end:
        copied = os.sendfile(target, source, begin, end - begin)
        if not copied:
            raise OSError(errno.EIO, "a disk's image became shorter while it was copied")
        begin += copied
