"""Writing a file while its bytes are still being copied into memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from adapters.base import DirectIo
from adapters.shared.directio import (
    ALIGNMENT,
    direct_or_buffered,
    open_for_write,
    round_up,
    write_all,
)

# So many requests are in flight at least. With one, the device would wait for the interpreter.
AT_ONCE = 2
_CLOSED = -1


class Frontier:
    """The border between the bytes of a file that are in memory and those that are still missing.

    It also knows which blocks the writers have taken, and how much room the memory has for more.
    The memory is a ring: the byte at `offset` of the file lies at `offset % room_bytes`.
    """

    def __init__(self, start: int, stop: int, block_bytes: int, room_bytes: int) -> None:
        """Take the range [start, stop) of the file, the size of a block and that of the memory.

        `start` is a multiple of ALIGNMENT. The last block is filled up with the bytes behind
        `stop`.
        """
        self._taken = start
        self._filled = start
        self._stop = stop
        self._block_bytes = block_bytes
        self._room_bytes = room_bytes
        self._writing: set[int] = set()
        self._is_abandoned = False
        self._changed = threading.Condition()

    def reserve(self, stop: int) -> None:
        """Return when the memory has room for everything before `stop`, or when nobody writes."""
        if stop <= self._room_bytes:
            return
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_abandoned
                    or stop - min(self._writing, default=self._taken) <= self._room_bytes
                )
            )

    def advance(self, filled: int) -> None:
        """Announce that everything before `filled` is in memory."""
        with self._changed:
            self._filled = filled
            self._changed.notify_all()

    def abandon(self) -> None:
        """Let the writers stop."""
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()

    def take(self) -> tuple[int, int] | None:
        """Wait for the next part to write and return its (start, stop), or None at the end.

        A part is as long as what is in memory, but no longer than a block, and does not cross the
        end of the ring.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_abandoned
                    or self._taken >= self._stop
                    or self._writable() > self._taken
                )
            )
            if self._is_abandoned or self._taken >= self._stop:
                return None
            start = self._taken
            ring_end = (start // self._room_bytes + 1) * self._room_bytes
            self._taken = min(self._writable(), start + self._block_bytes, ring_end)
            self._writing.add(start)
            return start, self._taken

    def wrote(self, start: int) -> None:
        """Release the memory of the part that begins at `start`, because it is written."""
        with self._changed:
            self._writing.remove(start)
            self._changed.notify_all()

    def _writable(self) -> int:
        """Return the end of the whole blocks of direct I/O that are in memory."""
        if self._filled >= self._stop:
            return round_up(self._stop, ALIGNMENT)
        return self._filled // ALIGNMENT * ALIGNMENT


class FileWriter:
    """Threads that write a file while its memory is being filled.

    There are as many threads as the directory takes requests at once.
    """

    def __init__(self, path: Path, memory: memoryview, frontier: Frontier, io: DirectIo) -> None:
        self.frontier = frontier
        self._path = path
        self._direct = io.direct
        self._descriptor = _CLOSED
        self._memory = memory
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._work, name="deepfreeze-writer")
            for _ in range(max(io.depth, AT_ONCE))
        ]

    def open(self) -> None:
        """Create the file and start to write. `close` also cleans up after an error in here."""
        self._descriptor = direct_or_buffered(open_for_write, self._path, self._direct)
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        """Return when no thread uses the memory, because everything is written or never will be."""
        for thread in self._threads:
            # A thread that was never started cannot be joined.
            if thread.is_alive():
                thread.join()

    def finish(self, header_bytes: int, file_bytes: int) -> None:
        """Write the header last, and return when the whole file is durable.

        Raise the first error of a writing thread, or the one that `stop` was given.
        """
        if self._errors:
            raise self._errors[0]
        write_all(self._descriptor, self._memory[:header_bytes], 0)
        os.ftruncate(self._descriptor, file_bytes)
        os.fsync(self._descriptor)

    def stop(self, error: BaseException) -> None:
        """Stop writing, and let `finish` raise the error."""
        self._errors.append(error)
        self.frontier.abandon()

    def close(self) -> None:
        """Stop writing, and close the file if it is open."""
        self.frontier.abandon()
        self.drain()
        descriptor = self._descriptor
        self._descriptor = _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)

    def _work(self) -> None:
        """Write part after part until there is none. Each writing thread runs this."""
        try:
            while (part := self.frontier.take()) is not None:
                start, stop = part
                offset = start % len(self._memory)
                write_all(self._descriptor, self._memory[offset : offset + stop - start], start)
                self.frontier.wrote(start)
        except BaseException as error:
            self.stop(error)
