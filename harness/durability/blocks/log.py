"""Reads a log of block writes, in the format of Linux's dm-log-writes.

The first sector of the log describes it. Each entry is a sector with a header, and then the bytes
that were written. All numbers are little-endian (Documentation/admin-guide/device-mapper/
log-writes.rst of Linux).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.durability.blocks.tools import DiskError

_MAGIC = 0x6A736677736872
_VERSION = 1
_SUPER = struct.Struct("<QQQI")  # magic, version, entries, bytes of a sector
_HEADER = struct.Struct("<QQQQ")  # sector, sectors, flags, bytes of a mark
_EMPTY_SECTOR_BYTES = 512
_FLUSH = 1
_FORCED = 2  # FUA: the write is on the disk when it returns
_DISCARD = 4
_MARK = 8


@dataclass(frozen=True)
class Entry:
    """One request to a disk.

    `offset` and `length` are bytes of the disk, and `at` is where the log has the bytes. A flush
    comes before the write of the same entry. A write that is `is_forced` survives a power loss.
    """

    is_flush: bool
    is_forced: bool
    offset: int
    length: int
    at: int

    @property
    def is_write(self) -> bool:
        """Return whether the entry changes bytes of the disk."""
        return self.length > 0


def count(log: Path) -> int:
    """Return how many entries a log has now. Raises OSError where it cannot be read."""
    with log.open("rb") as file:
        return _read_super(file.fileno(), log)[0]


def entries(log: Path) -> Iterator[Entry]:
    """Yield the entries of a log. Raises DiskError where it is damaged."""
    with log.open("rb") as file:
        descriptor = file.fileno()
        number, sector_bytes = _read_super(descriptor, log)
        at = sector_bytes
        for _ in range(number):
            header = os.pread(descriptor, _HEADER.size, at)
            if len(header) < _HEADER.size:
                raise DiskError(f"the log {log} ends before its last entry")
            sector, sectors, flags, mark_bytes = _HEADER.unpack(header)
            at += sector_bytes
            # A discard has no bytes. The disk may keep the old ones, and an image here does.
            length = 0 if flags & _DISCARD else sectors * sector_bytes
            is_flush = bool(flags & _FLUSH)
            is_forced = bool(flags & _FORCED)
            yield Entry(is_flush, is_forced, sector * sector_bytes, length, at)
            at += length
            if flags & _MARK:
                at += -(-mark_bytes // sector_bytes) * sector_bytes


def _read_super(descriptor: int, log: Path) -> tuple[int, int]:
    """Return the number of entries and the bytes of a sector."""
    described = os.pread(descriptor, _SUPER.size, 0)
    if len(described) == _SUPER.size:
        if not any(described):
            # The daemon describes the log when it writes the first entry.
            return 0, _EMPTY_SECTOR_BYTES
        magic, version, number, sector_bytes = _SUPER.unpack(described)
        if (magic, version) == (_MAGIC, _VERSION):
            return number, sector_bytes
    raise DiskError(f"{log} is no log of block writes; was it made by qemu-storage-daemon?")
