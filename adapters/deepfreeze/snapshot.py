"""One file: its tensors copied into memory, checksummed there, and written behind the copying."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import xxhash

from adapters.base import DirectIo
from adapters.deepfreeze.layout import Layout, Placed, digest
from adapters.deepfreeze.tensor import Changes, Tensor, bytes_of
from adapters.directio import ALIGNMENT, open_for_write, round_up, write_all

AT_ONCE = 2  # requests in flight at least: the device must not wait for the interpreter
RING_BLOCKS = 8
COPY_BYTES = 1 << 20  # what is copied at least before the writers are told


class Frontier:
    """How far the file's bytes are in memory, which of them no writer has taken yet, and what room there is for more."""

    def __init__(self, start: int, stop: int, block_bytes: int, room_bytes: int) -> None:
        """`start` is a multiple of ALIGNMENT; what lies behind `stop` fills up its last block. The room is used round and round."""
        self._taken = start
        self._filled = start
        self._stop = stop
        self._block_bytes = block_bytes
        self._room_bytes = room_bytes
        self._writing: set[int] = set()
        self._abandoned = False
        self._changed = threading.Condition()

    def reserve(self, stop: int) -> None:
        """Return when there is room for everything before `stop`, or when nobody writes any more."""
        if stop <= self._room_bytes:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or stop - min(self._writing, default=self._taken) <= self._room_bytes)

    def advance(self, filled: int) -> None:
        """Say that everything before `filled` is there."""
        with self._changed:
            self._filled = filled
            self._changed.notify_all()

    def abandon(self) -> None:
        """Send the writers home."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def take(self) -> tuple[int, int] | None:
        """Return (start, stop) of what to write next, as much as is there and at most a block; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or self._taken >= self._stop or self._writable() > self._taken)
            if self._abandoned or self._taken >= self._stop:
                return None
            start = self._taken
            ring_end = (start // self._room_bytes + 1) * self._room_bytes
            self._taken = min(self._writable(), start + self._block_bytes, ring_end)
            self._writing.add(start)
            return start, self._taken

    def wrote(self, start: int) -> None:
        """Give the memory of what began at `start` free."""
        with self._changed:
            self._writing.remove(start)
            self._changed.notify_all()

    def _writable(self) -> int:
        if self._filled >= self._stop:
            return round_up(self._stop, ALIGNMENT)
        return self._filled // ALIGNMENT * ALIGNMENT


class Snapshot:
    """A state on its way into an arena that has the layout of its file and keeps all of it."""

    def __init__(self, layout: Layout, memory: memoryview, tensors: dict[str, Tensor]) -> None:
        """Take the tensors of this rank's share. Each is gone once it is copied: a framework may copy what is still looked at."""
        self.layout = layout
        self.memory = memory
        self.tensors = tensors

    def block_bytes(self, io: DirectIo) -> int:
        """Return how much to write at once at most."""
        return io.block_bytes

    def begin(self) -> None:
        """Copy what the next forward pass may change."""
        self.memory[:8] = bytes(8)  # without a header the arena holds no checkpoint
        for entry in self._of(Changes.FORWARD):
            self._copy(entry, lambda stop: None)

    def copy(self, frontier: Frontier, on_free: Callable[[], None]) -> list[str]:
        """Copy the rest in file order, say when training may change everything again, and return the tensors' checksums."""
        for entry in self._of(Changes.UPDATE):
            self._copy(entry, frontier.advance)
        on_free()
        for entry in self._of(Changes.NEVER):
            self._copy(entry, frontier.advance)
        frontier.advance(self.layout.file_bytes)
        return [digest(self.memory[entry.start : entry.stop]) for entry in self.layout.placed]

    def _of(self, changes: Changes) -> list[Placed]:
        return [entry for entry in self.layout.placed if entry.piece.spec.changes is changes]

    def _copy(self, entry: Placed, on_copied: Callable[[int], None]) -> None:
        """Copy a tensor, in parts that grow with what the writers have to do: large ones are copied twice as fast as small ones."""
        tensor = self.tensors.pop(entry.piece.spec.name)
        start = entry.start
        while start < entry.stop:
            stop = min(start + max(COPY_BYTES, start - self.layout.data_start), entry.stop)
            tensor.copy_to(bytes_of(self.memory[start:stop]), entry.piece.skip_bytes + start - entry.start)
            on_copied(stop)
            start = stop


class Stream(Snapshot):
    """A state that nothing changes until it is written: it goes through a ring, small enough for the processor's caches."""

    def block_bytes(self, io: DirectIo) -> int:
        """Return a block of which the ring holds many: some are being written while others are filled."""
        return min(io.block_bytes, max(len(self.memory) // RING_BLOCKS // ALIGNMENT, 1) * ALIGNMENT)

    def begin(self) -> None:
        """Nothing is so urgent."""

    def copy(self, frontier: Frontier, on_free: Callable[[], None]) -> list[str]:
        """Copy in file order as there is room, checksumming what the caches still have."""
        digests = [self._pass(entry, frontier) for entry in self.layout.placed]
        frontier.advance(self.layout.file_bytes)
        on_free()
        return digests

    def _pass(self, entry: Placed, frontier: Frontier) -> str:
        tensor = self.tensors.pop(entry.piece.spec.name)
        checksum = xxhash.xxh3_64()
        start = entry.start
        while start < entry.stop:
            place = start % len(self.memory)
            length = min(COPY_BYTES, entry.stop - start, len(self.memory) - place)
            frontier.reserve(start + length)
            part = bytes_of(self.memory[place : place + length])
            tensor.copy_to(part, entry.piece.skip_bytes + start - entry.start)
            checksum.update(part.data)
            start += length
            frontier.advance(start)
        return checksum.hexdigest()


class FileWriter:
    """Threads that write a file while its arena is being filled: as many as the directory takes requests at once."""

    def __init__(self, path: Path, memory: memoryview, frontier: Frontier, io: DirectIo) -> None:
        self._descriptor = open_for_write(path, io.direct)
        self._memory = memory
        self._frontier = frontier
        self._errors: list[BaseException] = []
        count = max(io.depth, AT_ONCE)
        self._threads = [threading.Thread(target=self._work, name="deepfreeze-writer") for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def finish(self, header: bytes, file_bytes: int) -> None:
        """Write the header, when everything else is written, and return when all of it is durable."""
        self._join()
        self._memory[8 : len(header)] = header[8:]
        self._memory[:8] = header[:8]
        if self._errors:
            raise self._errors[0]
        write_all(self._descriptor, self._memory[: len(header)], 0)
        os.ftruncate(self._descriptor, file_bytes)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Stop writing."""
        self._frontier.abandon()
        self._join()
        os.close(self._descriptor)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            while (block := self._frontier.take()) is not None:
                start, stop = block
                place = start % len(self._memory)
                write_all(self._descriptor, self._memory[place : place + stop - start], start)
                self._frontier.wrote(start)
        except BaseException as error:
            self._errors.append(error)
            self._frontier.abandon()
