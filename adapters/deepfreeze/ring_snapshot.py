"""Copying a state through a ring of memory that is smaller than its file."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from adapters.base import DirectIo
from adapters.deepfreeze.layout import Placed, Stretch, digest
from adapters.deepfreeze.snapshot import COPY_BYTES, Snapshot
from adapters.deepfreeze.tensor import bytes_of, copy
from adapters.deepfreeze.writer import Frontier
from adapters.shared.directio import ALIGNMENT

RING_BLOCKS = 4


class RingSnapshot(Snapshot):
    """The copy of a state that nothing changes until it is written.

    It goes through a ring that is small enough for the processor's caches. From a device it comes
    part by part. Each part is waited for and checksummed before the next one, which is still
    faster than disks are.
    """

    def block_bytes(self, io: DirectIo) -> int:
        """Return a block size of which the ring holds several.

        So two blocks can be written while others are filled.
        """
        quarter_bytes = len(self.memory) // RING_BLOCKS // ALIGNMENT * ALIGNMENT
        return min(io.block_bytes, max(quarter_bytes, ALIGNMENT))

    def begin(self) -> None:
        """Copy nothing, because nothing changes. Only a device has to know what comes first."""
        if self.device is not None:
            self.device.follow()

    def help(self) -> None:
        """Do nothing, because a ring is filled in order, by one thread."""

    def copy(self, frontier: Frontier, on_released: Callable[[], None]) -> list[str]:
        """Copy in the order of the file while there is room, and return the checksums.

        A part is checksummed directly after its copy, while the caches still have it.
        """
        digests: list[str] = []
        for stretch in self.layout.stretches:
            digests += self._pass_stretch(stretch, frontier)
        frontier.advance(self.layout.file_bytes)
        on_released()
        return digests

    def _pass_stretch(self, stretch: Stretch, frontier: Frontier) -> list[str]:
        """Copy a stretch through the ring and return the checksums of its tensors."""
        offset = stretch.start % len(self.memory)
        room = self.memory[offset : offset + stretch.stop - stretch.start]
        crosses_end = len(room) < stretch.stop - stretch.start
        if len(stretch.placed) == 1 or crosses_end:
            return [self._pass_tensor(entry, frontier) for entry in stretch.placed]
        frontier.reserve(stretch.stop)
        sources = self._copy_small(stretch, bytes_of(room))
        self._wait()
        # Only now, because a device may give memory to others that nobody holds any more.
        sources.clear()
        digests = [
            digest(room[entry.start - stretch.start : entry.stop - stretch.start])
            for entry in stretch.placed
        ]
        frontier.advance(stretch.stop)
        return digests

    def _pass_tensor(self, entry: Placed, frontier: Frontier) -> str:
        """Copy a tensor through the ring, part by part, and return its checksum."""
        source = self._source(entry.piece)
        checksum = xxhash.xxh3_64()
        start = entry.start
        while start < entry.stop:
            offset = start % len(self.memory)
            length = min(COPY_BYTES, entry.stop - start, len(self.memory) - offset)
            frontier.reserve(start + length)
            part = bytes_of(self.memory[offset : offset + length])
            copy(source[start - entry.start : start - entry.start + length], part)
            self._wait()
            checksum.update(part.data)
            start += length
            frontier.advance(start)
        return checksum.hexdigest()
