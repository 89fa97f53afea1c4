"""Writing a file while its bytes come into memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from adapters.base import DirectIo
from adapters.shared.directio import ALIGNMENT, open_for_write, round_up, write_all

AT_ONCE = 2  # requests in flight at least: the device must not wait for the interpreter
_CLOSED = -1


class Frontier:
    """How far the file's bytes are in memory, which of them no writer has taken yet, and what room there is for more."""

    def __init__(self, start: int, stop: int, block_bytes: int, room_bytes: int) -> None:
        """`start` is a multiple of ALIGNMENT; what lies behind `stop` fills up its last block.

        The room is used round and round.
        """
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
            self._changed.wait_for(
                lambda: (
                    self._abandoned
                    or stop - min(self._writing, default=self._taken) <= self._room_bytes
                )
            )

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
            self._changed.wait_for(
                lambda: (
                    self._abandoned or self._taken >= self._stop or self._writable() > self._taken
                )
            )
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


class FileWriter:
    """Threads that write a file while its arena is being filled: as many as the directory takes requests at once."""

    def __init__(self, path: Path, memory: memoryview, frontier: Frontier, io: DirectIo) -> None:
        self._path = path
        self._direct = io.direct
        self._descriptor = _CLOSED
        self._memory = memory
        self.frontier = frontier
        self._errors: list[BaseException] = []
        count = max(io.depth, AT_ONCE)
        self._threads = [
            threading.Thread(target=self._work, name="deepfreeze-writer") for _ in range(count)
        ]

    def open(self) -> None:
        """Create the file and start to write; `close` gives back what this has got, also where an error has ended it."""
        self._descriptor = open_for_write(self._path, self._direct)
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        """Return when nobody looks at the memory any more: all that was to be written is, or never will be."""
        for thread in self._threads:
            if thread.is_alive():  # one that was never started cannot be joined
                thread.join()

    def finish(self, header_bytes: int, file_bytes: int) -> None:
        """Write the header, behind everything else, and return when all of it is durable."""
        if self._errors:
            raise self._errors[0]
        write_all(self._descriptor, self._memory[:header_bytes], 0)
        os.ftruncate(self._descriptor, file_bytes)
        os.fsync(self._descriptor)

    def stop(self, error: BaseException) -> None:
        """Write no more, and let `finish` raise the error."""
        self._errors.append(error)
        self.frontier.abandon()

    def close(self) -> None:
        """Stop writing, and close the file where it is open."""
        self.frontier.abandon()
        self.drain()
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)

    def _work(self) -> None:
        try:
            while (block := self.frontier.take()) is not None:
                start, stop = block
                place = start % len(self._memory)
                write_all(self._descriptor, self._memory[place : place + stop - start], start)
                self.frontier.wrote(start)
        except BaseException as error:
            self.stop(error)
