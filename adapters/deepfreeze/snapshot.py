"""One file: its tensors copied into the arena, checksummed there, and written behind the copying."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adapters.base import DirectIo
from adapters.deepfreeze.layout import Layout, Placed, digest
from adapters.deepfreeze.tensor import Changes, Tensor, bytes_of
from adapters.directio import ALIGNMENT, open_for_write, round_up, write_all

AT_ONCE = 2  # requests in flight at least: the device must not wait for the interpreter
COPY_BYTES = 1 << 20  # what is copied at least before the writers are told


@dataclass(frozen=True)
class Snapshot:
    """A state on its way into an arena that has the layout of its file."""

    layout: Layout
    memory: memoryview
    tensors: dict[str, Tensor]  # of this rank's share, each gone once it is copied: a framework may copy what is still looked at

    def begin(self) -> None:
        """Copy what the next forward pass may change."""
        self.memory[:8] = bytes(8)  # without a header the arena holds no checkpoint
        for entry in self._of(Changes.FORWARD):
            self._copy(entry, lambda stop: None)

    def copy(self, on_copied: Callable[[int], None], on_free: Callable[[], None]) -> None:
        """Copy the rest in file order: tell how far the arena is filled, and when training may change everything again."""
        for entry in self._of(Changes.UPDATE):
            self._copy(entry, on_copied)
        on_free()
        for entry in self._of(Changes.NEVER):
            self._copy(entry, on_copied)
        on_copied(self.layout.file_bytes)

    def seal(self, step: int) -> str:
        """Checksum what has been copied and put the header in front; returns the header's digest."""
        digests = [digest(self.memory[entry.start : entry.stop]) for entry in self.layout.placed]
        header, seal = self.layout.header(step, digests)
        self.memory[8 : len(header)] = header[8:]
        self.memory[:8] = header[:8]
        return seal

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


class Frontier:
    """How far an arena is filled, and which blocks of it no writer has taken yet."""

    def __init__(self, start: int, stop: int, block_bytes: int) -> None:
        """`start` is a multiple of ALIGNMENT; what lies behind `stop` fills up its last block."""
        self._taken = start
        self._filled = start
        self._stop = stop
        self._block_bytes = block_bytes
        self._changed = threading.Condition()

    def advance(self, filled: int) -> None:
        """Say that everything before `filled` is there."""
        with self._changed:
            self._filled = filled
            self._changed.notify_all()

    def abandon(self) -> None:
        """Send the writers home."""
        with self._changed:
            self._taken = self._stop
            self._changed.notify_all()

    def take(self) -> tuple[int, int] | None:
        """Return (start, stop) of what to write next, as much as is there and at most a block; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken >= self._stop or self._writable() > self._taken)
            if self._taken >= self._stop:
                return None
            start, self._taken = self._taken, min(self._writable(), self._taken + self._block_bytes)
            return start, self._taken

    def _writable(self) -> int:
        if self._filled >= self._stop:
            return round_up(self._stop, ALIGNMENT)
        return self._filled // ALIGNMENT * ALIGNMENT


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

    def finish(self, header_bytes: int, file_bytes: int) -> None:
        """Write the header, when everything else is written, and return when all of it is durable."""
        self._join()
        if self._errors:
            raise self._errors[0]
        write_all(self._descriptor, self._memory[:header_bytes], 0)
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
                write_all(self._descriptor, self._memory[block[0] : block[1]], block[0])
        except BaseException as error:
            self._errors.append(error)
            self._frontier.abandon()
