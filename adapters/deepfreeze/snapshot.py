"""Copying a state into memory in the layout of its file, and computing the checksums there."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from adapters.base import DirectIo
from adapters.deepfreeze import streaming
from adapters.deepfreeze.layout import LENGTH_BYTES, Layout, Placed, Stretch, digest
from adapters.deepfreeze.shares import Piece
from adapters.deepfreeze.tensor import (
    Bytes,
    Changes,
    Device,
    Memory,
    Remote,
    Source,
    Wait,
    bytes_of,
    copy,
    copy_together,
    look_up,
)
from adapters.deepfreeze.writer import Frontier

# Of a large tensor, at least so much is copied before the writers learn of it.
COPY_BYTES = 1 << 20
# A device has at least so much to copy when `begin` returns, if there is so much.
_AHEAD_BYTES = 64 << 20
# The writers learn of a device's copies in parts of this size, because each time they wake up and
# take the interpreter from the thread that starts the next copies.
_MARK_BYTES = 8 << 20

OnStarted = Callable[[list[Memory], int], None]
"""Called with the sources of a copy that was started, and with its end in the file."""


class Snapshot:
    """The copy of a state into an arena that has the layout of the file and room for all of it."""

    def __init__(
        self,
        layout: Layout,
        memory: memoryview,
        sources: dict[str, Source],
        device: Device | None = None,
    ) -> None:
        """Take the sources of this rank's share, and the device that holds some of them, if any.

        Each source is dropped once it is copied, because a framework may copy an array that
        somebody still holds when it changes it.
        """
        self.layout = layout
        self.memory = memory
        self.sources = sources
        self.device = device
        self.is_whole = False
        # The background takes stretches from the front, a helping thread from the back. A device
        # has no helping thread.
        self._uncopied = deque(self._stretches_of(Changes.UPDATE))
        self._helper_lock = threading.Lock()
        self._helper_error: BaseException | None = None
        # what `begin` has started
        self._begun = _CopiesUnderWay(device, lambda stop: None)

    def block_bytes(self, io: DirectIo) -> int:
        """Return the size of the largest request to the disk."""
        return io.block_bytes

    def begin(self) -> None:
        """Copy what the next forward pass may change.

        Copies from a device are only started. The device begins the next forward pass after them,
        so that the training thread need not wait until the device has done what it was asked
        before. The device gets some of the other copies too, so that it need not wait for the
        background thread.
        """
        # Without the length of a header the arena holds no checkpoint.
        self.memory[:LENGTH_BYTES] = bytes(LENGTH_BYTES)
        if self.device is not None:
            self.device.follow()
        self._start_all(self._stretches_of(Changes.FORWARD), self._begun.start)
        if self.device is not None:
            self.device.lead()
            self._start_all(self._ahead(), self._begun.start)

    def copy(self, frontier: Frontier, on_released: Callable[[], None]) -> list[str]:
        """Copy the rest in the order of the file, and return the checksums of all tensors.

        Advance the frontier with every copy. Call `on_released` once training may change
        everything again.
        """
        copies = _CopiesUnderWay(self.device, frontier.advance)
        self._start_all(_take_until_empty(self._uncopied.popleft), copies.start)
        # The writers may pass what `begin` has started as soon as the frontier moves.
        self._begun.wait_for_all()
        copies.wait_for_all()
        # The helper may still be copying the last stretch.
        with self._helper_lock:
            if self._helper_error is not None:
                raise self._helper_error
        on_released()
        self._copy_all(self._stretches_of(Changes.NEVER), frontier.advance)
        frontier.advance(self.layout.file_bytes)
        return [digest(self.memory[entry.start : entry.stop]) for entry in self.layout.placed]

    def seal(self, header: bytes) -> None:
        """Copy the header into the arena, its length last. Then the arena holds the checkpoint."""
        self.memory[LENGTH_BYTES : len(header)] = header[LENGTH_BYTES:]
        self.memory[:LENGTH_BYTES] = header[:LENGTH_BYTES]
        self.is_whole = True

    def help(self) -> None:
        """Copy from the end, in a thread that would only wait until everything is copied.

        `copy` raises an error of this. An interrupt is raised here too. A device copies by itself,
        and two threads that start its copies would only wait for each other's turn in the
        interpreter.
        """
        if self.device is not None:
            return
        with self._helper_lock:
            try:
                self._copy_all(_take_until_empty(self._uncopied.pop), lambda stop: None)
            except BaseException as error:
                self._helper_error = error
                # There will be no checkpoint, so that the background need not copy the rest.
                self._uncopied.clear()
                if not isinstance(error, Exception):
                    raise

    def give_up(self) -> None:
        """Drop the sources, and return when no copy from a device is under way."""
        self.sources.clear()
        # A device that fails is the reason for giving up, or less important than that.
        with suppress(Exception):
            self._wait()

    def _wait(self) -> None:
        """Return when all copies from a device that were started have arrived."""
        if self.device is not None:
            self.device.mark()()

    def _stretches_of(self, changes: Changes) -> list[Stretch]:
        """Return the stretches whose memory training changes at the given time."""
        return [stretch for stretch in self.layout.stretches if stretch.changes is changes]

    def _copy_all(self, stretches: Iterable[Stretch], on_copied: Callable[[int], None]) -> None:
        """Copy stretches. Call `on_copied` with the end of every part that has arrived."""
        copies = _CopiesUnderWay(self.device, on_copied)
        self._start_all(stretches, copies.start)
        copies.wait_for_all()

    def _ahead(self) -> Iterator[Stretch]:
        """Take stretches of the device from the front until they have `_AHEAD_BYTES`."""
        left_bytes = _AHEAD_BYTES
        while self._uncopied and left_bytes > 0 and self._is_away(self._uncopied[0]):
            stretch = self._uncopied.popleft()
            left_bytes -= stretch.stop - stretch.start
            yield stretch

    def _is_away(self, stretch: Stretch) -> bool:
        """Return whether the first tensor of a stretch is on the device."""
        source = self.sources[stretch.placed[0].piece.spec.name]
        return isinstance(look_up(source), Remote)

    def _start_all(self, stretches: Iterable[Stretch], on_started: OnStarted) -> None:
        """Copy stretches, and return when the last copy has started."""
        try:
            for stretch in stretches:
                self._copy_stretch(stretch, on_started)
        except BaseException:
            # The caller may free the memory when it learns of the error.
            with suppress(Exception):
                self._wait()
            raise

    def _copy_stretch(self, stretch: Stretch, on_started: OnStarted) -> None:
        if len(stretch.placed) == 1:
            self._copy_one(stretch.placed[0], on_started)
        else:
            destination = bytes_of(self.memory[stretch.start : stretch.stop])
            on_started(self._copy_small(stretch, destination), stretch.stop)

    def _copy_small(self, stretch: Stretch, destination: Bytes) -> list[Memory]:
        """Start to copy small tensors by one call, and return their sources."""
        sources = [self._source(entry.piece) for entry in stretch.placed]
        copy_together(sources, destination)
        return sources

    def _source(self, piece: Piece) -> Memory:
        """Drop the source of a piece and return its memory.

        Raise ValueError where the tensor has another size now. A part of it would be stored, and
        the checksum of that part would be right.
        """
        memory = look_up(self.sources.pop(piece.spec.name))
        if len(memory) != piece.spec.size_bytes:
            raise ValueError(
                f"{piece.spec.name} has {len(memory)} bytes, and had {piece.spec.size_bytes} when "
                "DeepFreeze was opened; open it again after the types or shapes of a state change"
            )
        if piece.is_whole:
            return memory
        return memory[piece.skip_bytes : piece.skip_bytes + piece.size_bytes]

    def _copy_one(self, entry: Placed, on_started: OnStarted) -> None:
        """Copy a tensor, in parts that grow with the number of bytes that the writers have.

        Large parts are copied twice as fast as small ones.
        """
        source = self._source(entry.piece)
        start = entry.start
        while start < entry.stop:
            stop = min(start + max(COPY_BYTES, start - self.layout.data_start), entry.stop)
            part = source[start - entry.start : stop - entry.start]
            copy(part, bytes_of(self.memory[start:stop]), on_host=streaming.copy)
            on_started([part], stop)
            start = stop


class _CopiesUnderWay:
    """The copies that were started and may not have arrived.

    A device makes one after the other by itself. Copies on the host have arrived when they return.
    """

    def __init__(self, device: Device | None, on_copied: Callable[[int], None]) -> None:
        self._device = device
        self._on_copied = on_copied
        # Sources are held until their copies have arrived, because a device may give memory to
        # others that nobody holds any more.
        self._marked: deque[tuple[list[Memory], Wait, int]] = deque()
        self._unmarked: list[Memory] = []
        self._unmarked_bytes = 0
        self._stop = 0

    def start(self, sources: list[Memory], stop: int) -> None:
        """Add a copy that was started and that ends at `stop` in the file."""
        if self._device is None:
            self._on_copied(stop)
            return
        self._unmarked += sources
        self._unmarked_bytes += sum(map(len, sources))
        self._stop = stop
        if self._unmarked_bytes >= _MARK_BYTES:
            self._mark(self._device)

    def wait_for_all(self) -> None:
        """Return when all copies have arrived."""
        if self._device is not None and self._unmarked:
            self._mark(self._device)
        while self._marked:
            self._wait_for_oldest()

    def _mark(self, device: Device) -> None:
        self._marked.append((self._unmarked, device.mark(), self._stop))
        self._unmarked = []
        self._unmarked_bytes = 0

    def _wait_for_oldest(self) -> None:
        _, wait, stop = self._marked[0]
        wait()
        self._marked.popleft()
        self._on_copied(stop)


def _take_until_empty(take: Callable[[], Stretch]) -> Iterator[Stretch]:
    """Yield what `take` returns until it raises IndexError, because there is no more."""
    while True:
        try:
            stretch = take()
        except IndexError:
            return
        yield stretch
