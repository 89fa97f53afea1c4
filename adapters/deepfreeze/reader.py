"""Reading files back: direct reads run ahead, while what has come is brought to its place and checksummed."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from adapters.base import DirectIo
from adapters.deepfreeze.stored import Damaged, Found, StoredFile
from adapters.deepfreeze.tensor import Bytes, bytes_of
from adapters.directio import ALIGNMENT, aligned_buffer, open_for_read, round_up

_AT_ONCE = 4  # requests in flight at least: the device must not wait for the interpreter
_AHEAD = 2  # blocks that have come and wait, or are being brought to their place, beside those being read
_BLOCK_BYTES = 1 << 20  # at most: what comes last is brought to its place while nothing is read

Range = tuple[int, int]  # [start, stop) in a file
Place = Callable[[int, Range], memoryview]  # where to read the block with this number


@dataclass(frozen=True)
class Block:
    """A part of a file in memory."""

    start: int
    stop: int
    memory: memoryview


class Reader:
    """Reads tensors out of files. Its memory is a ring of blocks, used again by every read."""

    def __init__(self, io: DirectIo) -> None:
        self._direct = io.direct
        self._depth = max(io.depth, _AT_ONCE)
        self._block_bytes = min(round_up(io.block_bytes), _BLOCK_BYTES)
        self._ring = [aligned_buffer(self._block_bytes) for _ in range(self._depth + _AHEAD)]
        for slot in self._ring:
            bytes_of(slot)[::ALIGNMENT] = 0  # the first touch of a page is slow, and not to be the first load's

    def read(self, file: StoredFile, wanted: Sequence[Found], targets: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """Bring the wanted tensors to their targets, and return those that have none in new memory.

        Raises Damaged where a checksum differs or the file ends early.
        """
        entries = sorted((found for found in wanted if found.spec.size_bytes), key=lambda found: found.stored.start)
        image = bytes_of(b"")
        untargeted = [found for found in wanted if found.spec.name not in targets]
        if any(found.spec.size_bytes for found in untargeted):
            image = bytes_of(aligned_buffer(round_up(entries[-1].stored.stop)))
        fresh = {found.spec.name: image[found.stored.start : found.stored.stop] for found in untargeted}
        self._read(file, deque(_Arrival(found, targets.get(found.spec.name)) for found in entries), image)
        return fresh

    def _read(self, file: StoredFile, arrivals: deque[_Arrival], image: Bytes) -> None:
        def place(number: int, part: Range) -> memoryview:
            if len(image):
                memory = image[part[0] : round_up(part[1])]
                memory[::ALIGNMENT] = 0  # the first touch takes time, here beside the reads before, else in front of this one
                return memory.data
            return self._ring[number % len(self._ring)]

        ranges = _blocks([(arrival.start, arrival.stop) for arrival in arrivals], self._block_bytes)
        descriptor = _open(file.path, self._direct)
        try:
            for block in self._read_ahead(descriptor, ranges, place):
                while arrivals and arrivals[0].start < block.stop:
                    if not arrivals[0].take(block):
                        break
                    arrivals.popleft().check(file)
        except EOFError as error:
            raise Damaged(f"{file.path}: {error}, in {arrivals[0].name}") from error
        finally:
            os.close(descriptor)

    def _read_ahead(self, descriptor: int, ranges: Iterator[Range], place: Place) -> Iterator[Block]:
        """Yield the ranges in order. A block's memory is read into again once the next one is asked for."""
        ahead: deque[Future[Block]] = deque()
        with ThreadPoolExecutor(self._depth, "deepfreeze-reader") as pool:
            for number, part in enumerate(ranges):
                if len(ahead) == len(self._ring):
                    yield ahead.popleft().result()
                ahead.append(pool.submit(_read_block, descriptor, part, place(number, part)))
            while ahead:
                yield ahead.popleft().result()


class _Arrival:
    """A tensor on its way from the file to its target."""

    def __init__(self, found: Found, target: Bytes | None) -> None:
        self.name = found.stored.name
        self.start = found.stored.start
        self.stop = found.stored.stop
        self._digest = found.stored.digest
        self._target = None if target is None else target[found.skip_bytes : found.skip_bytes + self.stop - self.start]
        self._hash = xxhash.xxh3_64()

    def take(self, block: Block) -> bool:
        """Take what the block has of it, and say whether that was the last of it."""
        start, stop = max(self.start, block.start), min(self.stop, block.stop)
        part = block.memory[start - block.start : stop - block.start]
        if self._target is not None:
            np.copyto(self._target[start - self.start : stop - self.start], bytes_of(part))
        self._hash.update(part)
        return stop == self.stop

    def check(self, file: StoredFile) -> None:
        """Raise Damaged unless the bytes are those that were saved."""
        if self._hash.hexdigest() != self._digest:
            raise Damaged(f"{file.path}: the checksum of {self.name} differs from that of the bytes that were saved")


def _blocks(parts: Sequence[Range], block_bytes: int) -> Iterator[Range]:
    """Divide the parts of a file, which are in order, into blocks that begin as direct I/O wants it; short gaps are read too."""
    for start, stop in _joined(parts, block_bytes):
        first = start // ALIGNMENT * ALIGNMENT
        for offset in range(first, stop, block_bytes):
            yield offset, min(offset + block_bytes, stop)


def _joined(parts: Sequence[Range], gap_bytes: int) -> Iterator[Range]:
    joined: list[Range] = []
    for start, stop in parts:
        if joined and start - joined[-1][1] < gap_bytes:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return iter(joined)


def _open(path: Path, direct: bool) -> int:
    """Open for direct I/O where the file system has it: one in memory need not."""
    try:
        return open_for_read(path, direct)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        return open_for_read(path, direct=False)


def _read_block(descriptor: int, part: Range, memory: memoryview) -> Block:
    start, stop = part
    whole = memory[: round_up(stop - start)]
    done = 0
    while done < stop - start:
        count = os.preadv(descriptor, [whole[done:]], start + done)
        if count == 0:
            raise EOFError(f"the file ends at byte {start + done}")
        done += count
    return Block(start, stop, memory)
