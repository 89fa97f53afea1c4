"""A file that several threads read at the same time."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from adapters.deepfreeze.read_plan import Range
from adapters.shared.directio import direct_or_buffered, open_for_read, round_up

_CLOSED = -1


class EarlyRead(NamedTuple):
    """A read that was started before a header has said what to read."""

    part: Range
    memory: memoryview
    coming: Future[None]


class OpenedFile:
    """A file that threads read parts of, in the order of the calls of `read`."""

    def __init__(self, path: Path, direct: bool, depth: int) -> None:
        """Open the file for `depth` reads at the same time."""
        self.path = path
        self.early: deque[EarlyRead] = deque()
        self._descriptor = direct_or_buffered(open_for_read, path, direct)
        self._pool = ThreadPoolExecutor(depth, "deepfreeze-reader")

    def read(self, part: Range, memory: memoryview) -> Future[None]:
        """Start to read a part.

        The future raises EOFError if the file ends early, and OSError if it cannot be read.
        """
        return self._pool.submit(_read_part, self._descriptor, part, memory)

    def take_early(self, part: Range, memory: memoryview) -> Future[None] | None:
        """Return the next early read if it reads this part into this memory.

        Otherwise cancel all early reads that are left, and return None when none of them writes to
        its memory any more, because that is about to be used.
        """
        if self.early and self.early[0].part == part and self.early[0].memory is memory:
            return self.early.popleft().coming
        for read in self.early:
            read.coming.cancel()
        wait(read.coming for read in self.early)
        self.early.clear()
        return None

    def close(self) -> None:
        """Return when nothing is being read any more. A second call does nothing."""
        # The threads read from the descriptor, so that they end first.
        self._pool.shutdown(cancel_futures=True)
        descriptor = self._descriptor
        self._descriptor = _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)


def _read_part(descriptor: int, part: Range, memory: memoryview) -> None:
    """Read whole blocks, because direct I/O needs that, until the part is complete."""
    start, stop = part
    whole = memory[: round_up(stop - start)]
    done = 0
    while done < stop - start:
        count = os.preadv(descriptor, [whole[done:]], start + done)
        if count == 0:
            raise EOFError(f"the file ends at byte {start + done}")
        done += count
