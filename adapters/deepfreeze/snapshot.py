"""Copying a state into memory in the layout of its file, and checksumming it there."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain

import xxhash

from adapters.base import DirectIo
from adapters.deepfreeze import streaming
from adapters.deepfreeze.layout import Layout, Piece, Placed, Stretch, digest
from adapters.deepfreeze.tensor import (
    Bytes,
    Changes,
    Device,
    Memory,
    Source,
    Wait,
    bytes_of,
    copy,
    copy_together,
    found,
)
from adapters.deepfreeze.writer import Frontier
from adapters.shared.directio import ALIGNMENT

COPY_BYTES = 1 << 20  # what is copied at least before the writers are told
RING_BLOCKS = 4
_UNDER_WAY = 4  # copies that a device may have been asked for and not done yet

OnBegun = Callable[[list[Memory], int], None]
"""Called with what is being copied, and with where the copy ends in the file."""


class Snapshot:
    """A state on its way into an arena that has the layout of its file and keeps all of it."""

    def __init__(
        self,
        layout: Layout,
        memory: memoryview,
        sources: dict[str, Source],
        device: Device | None = None,
    ) -> None:
        """Take the sources of this rank's share.

        Each is gone once it is copied: a framework may copy what is still looked at.

        `device` has some of them, if any.
        """
        self.layout = layout
        self.memory = memory
        self.sources = sources
        self.device = device
        self.is_whole = False
        self._waiting = deque(self._of(Changes.UPDATE))
        self._helping = threading.Lock()
        self._helpers_error: BaseException | None = None

    def block_bytes(self, io: DirectIo) -> int:
        """Return how much to write at once at most."""
        return io.block_bytes

    def begin(self) -> None:
        """Copy what the next forward pass may change."""
        self.memory[:8] = bytes(8)  # without a header the arena holds no checkpoint
        if self.device is not None:
            self.device.follow()
        self._copy_all(self._of(Changes.FORWARD), lambda stop: None)

    def copy(self, frontier: Frontier, on_free: Callable[[], None]) -> list[str]:
        """Copy the rest in file order, say when training may change everything again, and return the tensors' checksums."""
        self._copy_all(_emptied(self._waiting.popleft), frontier.advance)
        with self._helping:  # not before the helper has copied the last one
            if self._helpers_error is not None:
                raise self._helpers_error
        on_free()
        self._copy_all(self._of(Changes.NEVER), frontier.advance)
        frontier.advance(self.layout.file_bytes)
        return [digest(self.memory[entry.start : entry.stop]) for entry in self.layout.placed]

    def seal(self, header: bytes) -> None:
        """Put the header there, its length last: from then on the arena holds the checkpoint."""
        self.memory[8 : len(header)] = header[8:]
        self.memory[:8] = header[:8]
        self.is_whole = True

    def help(self) -> None:
        """Copy too, from the end: for a thread that has nothing to do until everything is copied.

        `copy` raises what goes wrong; an interrupt is raised here too.
        """
        with self._helping:
            try:
                self._copy_all(_emptied(self._waiting.pop), lambda stop: None)
            except BaseException as error:
                self._helpers_error = error
                self._waiting.clear()  # there is no checkpoint to copy for any more
                if not isinstance(error, Exception):
                    raise

    def give_up(self) -> None:
        """Let go of the sources, and return when nothing is being copied from a device, for whatever reason."""
        self.sources.clear()
        # of a device that fails, which is why this is called, or comes second
        with suppress(Exception):
            self._wait()

    def _wait(self) -> None:
        """Return when all copies from a device that have begun have arrived."""
        if self.device is not None:
            self.device.mark()()

    def _of(self, changes: Changes) -> list[Stretch]:
        return [stretch for stretch in self.layout.stretches if stretch.changes is changes]

    def _copy_all(self, stretches: Iterable[Stretch], on_copied: Callable[[int], None]) -> None:
        """Copy stretches, and say of each part when it is there."""
        under_way = _UnderWay(self.device, on_copied)
        try:
            for stretch in stretches:
                self._copy(stretch, under_way.begun)
            under_way.end()
        except BaseException:
            with suppress(Exception):
                self._wait()  # whoever is told may let go of the memory
            raise

    def _copy(self, stretch: Stretch, on_begun: OnBegun) -> None:
        if len(stretch.placed) == 1:
            self._copy_one(stretch.placed[0], on_begun)
        else:
            on_begun(
                self._copy_small(stretch, bytes_of(self.memory[stretch.start : stretch.stop])),
                stretch.stop,
            )

    def _copy_small(self, stretch: Stretch, destination: Bytes) -> list[Memory]:
        """Begin to copy, and return from where."""
        sources = [self._source(entry.piece) for entry in stretch.placed]
        copy_together(sources, destination)
        return sources

    def _source(self, piece: Piece) -> Memory:
        return found(self.sources.pop(piece.spec.name))[
            piece.skip_bytes : piece.skip_bytes + piece.size_bytes
        ]

    def _copy_one(self, entry: Placed, on_begun: OnBegun) -> None:
        """Copy a tensor, in parts that grow with what the writers have to do: large ones are copied twice as fast as small ones."""
        source = self._source(entry.piece)
        start = entry.start
        while start < entry.stop:
            stop = min(start + max(COPY_BYTES, start - self.layout.data_start), entry.stop)
            part = source[start - entry.start : stop - entry.start]
            copy(part, bytes_of(self.memory[start:stop]), on_host=streaming.copy)
            on_begun([part], stop)
            start = stop


class Stream(Snapshot):
    """A state that nothing changes until it is written: it goes through a ring, small enough for the processor's caches.

    From a device it comes part by part, each waited for and checksummed before the next: still
    faster than disks are.
    """

    def block_bytes(self, io: DirectIo) -> int:
        """Return a block of which the ring holds some: two are being written while others are filled."""
        return min(io.block_bytes, max(len(self.memory) // RING_BLOCKS // ALIGNMENT, 1) * ALIGNMENT)

    def begin(self) -> None:
        """Nothing is so urgent; only a device has to know what comes first."""
        if self.device is not None:
            self.device.follow()

    def help(self) -> None:
        """A ring is filled in order, by one."""

    def copy(self, frontier: Frontier, on_free: Callable[[], None]) -> list[str]:
        """Copy in file order as there is room, checksumming what the caches still have."""
        digests = list(
            chain.from_iterable(self._pass(stretch, frontier) for stretch in self.layout.stretches)
        )
        frontier.advance(self.layout.file_bytes)
        on_free()
        return digests

    def _pass(self, stretch: Stretch, frontier: Frontier) -> list[str]:
        place = stretch.start % len(self.memory)
        room = self.memory[place : place + stretch.stop - stretch.start]
        # the ring ends in between
        if len(stretch.placed) == 1 or len(room) < stretch.stop - stretch.start:
            return [self._pass_one(entry, frontier) for entry in stretch.placed]
        frontier.reserve(stretch.stop)
        sources = self._copy_small(stretch, bytes_of(room))
        self._wait()
        sources.clear()  # not before: a device may give their memory to others
        digests = [
            digest(room[entry.start - stretch.start : entry.stop - stretch.start])
            for entry in stretch.placed
        ]
        frontier.advance(stretch.stop)
        return digests

    def _pass_one(self, entry: Placed, frontier: Frontier) -> str:
        source = self._source(entry.piece)
        checksum = xxhash.xxh3_64()
        start = entry.start
        while start < entry.stop:
            place = start % len(self.memory)
            length = min(COPY_BYTES, entry.stop - start, len(self.memory) - place)
            frontier.reserve(start + length)
            part = bytes_of(self.memory[place : place + length])
            copy(source[start - entry.start : start - entry.start + length], part)
            self._wait()
            checksum.update(part.data)
            start += length
            frontier.advance(start)
        return checksum.hexdigest()


class _UnderWay:
    """Copies that have begun.

    A device is always busy with some of them; those on the host are there at once.
    """

    def __init__(self, device: Device | None, on_copied: Callable[[int], None]) -> None:
        self._device = device
        self._on_copied = on_copied
        self._copies: deque[tuple[list[Memory], Wait, int]] = deque()

    def begun(self, sources: list[Memory], stop: int) -> None:
        """Have it said when everything is there that has begun until now, `stop` being the end of it in the file.

        The sources are kept until then: a device may give their memory to others when nobody has
        them any more.
        """
        if self._device is None:
            self._on_copied(stop)
            return
        self._copies.append((sources, self._device.mark(), stop))
        if len(self._copies) >= _UNDER_WAY:
            self._arrive()

    def end(self) -> None:
        """Wait for all of them."""
        while self._copies:
            self._arrive()

    def _arrive(self) -> None:
        _, wait, stop = self._copies[0]
        wait()
        self._copies.popleft()
        self._on_copied(stop)


def _emptied(take: Callable[[], Stretch]) -> Iterator[Stretch]:
    """Take one after the other until there is none."""
    while True:
        try:
            stretch = take()
        except IndexError:
            return
        yield stretch
