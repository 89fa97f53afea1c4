"""Reading files back: direct reads run ahead, while what has come is brought to its place and checksummed."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from adapters.base import DirectIo
from adapters.deepfreeze import streaming
from adapters.deepfreeze.arena import pinned
from adapters.deepfreeze.stored import Damaged, Found, StoredFile
from adapters.deepfreeze.tensor import Bytes, Device, Memory, bring, bytes_of
from adapters.shared.directio import ALIGNMENT, aligned_buffer, open_for_read, round_up

# blocks that are asked for, or are being brought to their place, beside those being read
_AHEAD = 2
_RING_BYTES = 48 << 20  # at most, of all blocks
_SMALL_BYTES = 1 << 20  # of tensors that are many
_LAST_BYTES = 2 << 20  # of the last block at most
_CLOSED = -1

Range = tuple[int, int]  # [start, stop) in a file
Tensors = Generator[tuple[str, Bytes], None, None]  # names and bytes


@dataclass(frozen=True)
class Block:
    """A part of a file that comes into memory, for the tensors of one group."""

    group: Group
    start: int
    stop: int
    memory: memoryview
    coming: Future[None]

    def come(self) -> Block:
        """Wait for it.

        Raises EOFError where the file ends early, and OSError where it cannot be read.
        """
        self.coming.result()
        return self


class Early(NamedTuple):
    """A read that was begun before a header said what to read."""

    part: Range
    memory: memoryview
    coming: Future[None]


class Opened:
    """A file that threads read parts of, in the order in which they were asked for."""

    def __init__(self, path: Path, direct: bool, depth: int) -> None:
        self.path = path
        self.early: deque[Early] = deque()
        self._descriptor = _open(path, direct)
        self._pool = ThreadPoolExecutor(depth, "deepfreeze-reader")

    def read(self, part: Range, memory: memoryview) -> Future[None]:
        """Begin to read a part."""
        return self._pool.submit(_read_part, self._descriptor, part, memory)

    def take_early(self, part: Range, memory: memoryview) -> Future[None] | None:
        """Return the next of the early reads where it brings this part to this memory.

        Else none is left, and none that still writes: the memory of all of them is about to be
        used.
        """
        if self.early and self.early[0].part == part and self.early[0].memory is memory:
            return self.early.popleft().coming
        for left in self.early:
            left.coming.cancel()
        wait(left.coming for left in self.early)
        self.early.clear()
        return None

    def close(self) -> None:
        """Return when nothing is being read any more; again does nothing."""
        # before the descriptor: its threads read from there
        self._pool.shutdown(cancel_futures=True)
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)


class Reader:
    """Reads tensors out of files. Its memory is a ring of blocks, used again by every read."""

    def __init__(self, io: DirectIo, device: Device | None = None) -> None:
        """`device` has some of the targets, if any."""
        self._direct = io.direct
        self._device = device
        slots = io.depth + _AHEAD
        self._depth = io.depth
        self._block_bytes = min(
            round_up(io.block_bytes), _RING_BYTES // slots // ALIGNMENT * ALIGNMENT
        )
        self._ring = [aligned_buffer(self._block_bytes) for _ in range(slots)]
        for slot in self._ring:
            # the first touch of a page is slow, and not to be the first load's
            bytes_of(slot)[::ALIGNMENT] = 0
        self._unpins = (
            [pinned(device.pin, slot, self) for slot in self._ring] if device is not None else []
        )

    def close(self) -> None:
        """Let the device go of the ring. Nothing must be read any more; again does nothing."""
        while self._unpins:
            self._unpins.pop()()

    def first(self, wanted: Sequence[Found]) -> tuple[Range, ...]:
        """Return which parts of a file are read first, as many as there is memory for, where these tensors of it are wanted."""
        return tuple(
            part for _, part in islice(_plan(_in_order(wanted), self._block_bytes), len(self._ring))
        )

    def begin(self, path: Path, parts: Sequence[Range]) -> Opened:
        """Begin to read parts of a file.

        `read` takes what is there of what it would read first, and reads all else.
        """
        opened = Opened(path, self._direct, self._depth)
        try:
            opened.early.extend(
                Early(part, slot, opened.read(part, slot))
                for part, slot in zip(parts, self._ring, strict=False)
            )
        except BaseException:
            opened.close()  # nobody else has it yet
            raise
        return opened

    def read(
        self,
        file: StoredFile,
        wanted: Sequence[Found],
        targets: Mapping[str, Memory],
        begun: Opened | None = None,
    ) -> Tensors:
        """Bring the wanted tensors to their targets, and yield those that have none, in new memory, once they are there.

        Small ones, of which there are many, are read first and given out between the large ones:
        what is done with them then falls into the time of the reads, and never takes so long at a
        stretch that the reading threads wait for the interpreter. `begun` is the same file, or one
        that nothing is wanted of any more. Raises Damaged where a checksum differs or the file ends
        early, and OSError where it cannot be read. Who does not take everything has to close what
        is returned.
        """
        empty = [found.spec.name for found in wanted if not found.spec.size_bytes]
        yield from ((name, np.empty(0, np.uint8)) for name in empty if name not in targets)
        small, large = _in_order(wanted)
        groups = [
            Group(found, targets, are_large=found is large) for found in (small, large) if found
        ]
        with closing(self._read(file, groups, begun)) as arrived:
            yield from _mixed(arrived, targets, at_once=len(small) // max(len(large), 1) + 1)

    def _read(
        self, file: StoredFile, groups: Sequence[Group], begun: Opened | None
    ) -> Generator[tuple[Group, Found], None, None]:
        """Yield what has come and is what was saved."""
        if begun is not None and begun.path != file.path:
            begun.close()  # its threads write to the ring
            begun = None
        opened = begun or Opened(file.path, self._direct, self._depth)
        try:
            with closing(self._read_ahead(opened, groups)) as blocks:
                for block in blocks:
                    yield from ((block.group, found) for found in _arrived(block, file))
                    self._wait()  # before the block's memory is read into again
        except EOFError as error:
            raise Damaged(f"{file.path}: {error}, in {_awaited(groups)}") from error
        except OSError as error:
            raise OSError(
                error.errno, f"{error.strerror}, in {_awaited(groups)}", str(file.path)
            ) from error
        finally:
            try:
                with suppress(Exception):  # of a device that fails, which has been told
                    self._wait()
            finally:
                opened.close()

    def _wait(self) -> None:
        """Return when nothing is being copied to the device."""
        if self._device is not None:
            self._device.mark()()

    def _read_ahead(self, opened: Opened, groups: Sequence[Group]) -> Generator[Block, None, None]:
        """Yield the groups' blocks in order.

        A block's memory is read into again once the next one is asked for.
        """
        ahead: deque[Block] = deque()
        plan = _plan([group.entries for group in groups], self._block_bytes)
        for number, (group, part) in enumerate((groups[which], part) for which, part in plan):
            if len(ahead) == len(self._ring):
                yield ahead.popleft().come()
            slot = self._ring[number % len(self._ring)]
            memory = group.touched(part) if group.is_direct else slot
            coming = opened.take_early(part, memory) or opened.read(part, memory)
            ahead.append(Block(group, *part, memory, coming))
        while ahead:
            yield ahead.popleft().come()


class Group:
    """Tensors of a file that are read one after the other, and new memory where some have no target."""

    def __init__(
        self, entries: Sequence[Found], targets: Mapping[str, Memory], are_large: bool
    ) -> None:
        """Take the tensors in file order.

        The memory is as the file is, from the page on in which the first of them begins.

        Where it is for all of them, and they are large, blocks are read into it; else they are
        copied there from the ring.
        """
        is_fresh = any(found.spec.name not in targets for found in entries)
        self.is_direct = are_large and not any(found.spec.name in targets for found in entries)
        self.entries = entries
        self._first = entries[0].stored.start // ALIGNMENT * ALIGNMENT
        size_bytes = round_up(entries[-1].stored.stop) - self._first if is_fresh else 0
        self._memory = bytes_of(aligned_buffer(size_bytes))
        self.arrivals = deque(_Arrival(found, self._target(found, targets)) for found in entries)

    def _target(self, found: Found, targets: Mapping[str, Memory]) -> Memory | None:
        """Return where a block's bytes are copied to, if they are."""
        if found.spec.name in targets:
            return targets[found.spec.name][
                found.skip_bytes : found.skip_bytes + found.stored.stop - found.stored.start
            ]
        return None if self.is_direct else self.memory(found.stored.start, found.stored.stop)

    def memory(self, start: int, stop: int) -> Bytes:
        """Return the new memory of a part of the file."""
        return self._memory[start - self._first : stop - self._first]

    def touched(self, part: Range) -> memoryview:
        """Return the memory of a block, touched: that takes time, here beside the reads before, else in front of this one."""
        memory = self.memory(part[0], round_up(part[1]))
        memory[::ALIGNMENT] = 0
        return memory.data


class _Arrival:
    """A tensor on its way from the file to its target."""

    def __init__(self, found: Found, target: Memory | None) -> None:
        self.found = found
        self.start = found.stored.start
        self.stop = found.stored.stop
        self._digest = found.stored.digest
        self._target = target
        self._hash = xxhash.xxh3_64()

    def take(self, block: Block) -> bool:
        """Take what the block has of it, and say whether that was the last of it."""
        start, stop = max(self.start, block.start), min(self.stop, block.stop)
        part = block.memory[start - block.start : stop - block.start]
        if self._target is not None:
            bring(
                bytes_of(part),
                self._target[start - self.start : stop - self.start],
                on_host=streaming.copy,
            )
        self._hash.update(part)
        return stop == self.stop

    def check(self, file: StoredFile) -> None:
        """Raise Damaged unless the bytes are those that were saved."""
        if self._hash.hexdigest() != self._digest:
            raise Damaged(
                f"{file.path}: the checksum of {self.found.stored.name} differs from that of the bytes that were saved"
            )


def _arrived(block: Block, file: StoredFile) -> Iterator[Found]:
    """Take what a block has, and yield what is whole with it.

    Raises Damaged where that is not what was saved.
    """
    arrivals = block.group.arrivals
    while arrivals and arrivals[0].start < block.stop:
        if not arrivals[0].take(block):
            break
        arrived = arrivals.popleft()
        arrived.check(file)
        yield arrived.found


def _awaited(groups: Sequence[Group]) -> str:
    """Return the name of the tensor that comes next."""
    return next(group.arrivals[0] for group in groups if group.arrivals).found.stored.name


def _mixed(
    arrived: Iterable[tuple[Group, Found]], targets: Mapping[str, Memory], at_once: int
) -> Iterator[tuple[str, Bytes]]:
    """Yield what has no target: large tensors when they come, and behind each large one `at_once` of the small ones before."""
    waiting: deque[tuple[str, Bytes]] = deque()
    for group, found in arrived:
        is_small = found.spec.size_bytes < _SMALL_BYTES
        if found.spec.name not in targets:
            fresh = found.spec.name, group.memory(found.stored.start, found.stored.stop)
            if is_small:
                waiting.append(fresh)
            else:
                yield fresh
        if not is_small:
            yield from (waiting.popleft() for _ in range(min(at_once, len(waiting))))
    yield from waiting


def _in_order(wanted: Iterable[Found]) -> tuple[list[Found], list[Found]]:
    """Return the small tensors that have bytes, and the large ones, each in file order."""
    entries = sorted(
        (found for found in wanted if found.spec.size_bytes), key=lambda found: found.stored.start
    )
    small = [found for found in entries if found.spec.size_bytes < _SMALL_BYTES]
    return small, [found for found in entries if found.spec.size_bytes >= _SMALL_BYTES]


def _plan(groups: Sequence[Sequence[Found]], block_bytes: int) -> Iterator[tuple[int, Range]]:
    """Yield what is to be read of a file for groups of its tensors, and for which of them, block by block.

    The last ones are ever smaller: nothing is being read any more while the very last one is
    brought to its place.
    """
    plan = [
        (which, part)
        for which, entries in enumerate(groups)
        for part in _parts(entries, block_bytes)
    ]
    if len(plan) > 1 and plan[-2][0] == plan[-1][0] and plan[-2][1][1] == plan[-1][1][0]:
        # half of both is a block at most
        plan[-2:] = [(plan[-1][0], (plan[-2][1][0], plan[-1][1][1]))]
    yield from plan[:-1]
    for which, part in plan[-1:]:
        yield from ((which, smaller) for smaller in _halved(part, min(_LAST_BYTES, block_bytes)))


def _parts(entries: Sequence[Found], block_bytes: int) -> Iterator[Range]:
    """Yield what is to be read of a file for tensors of it, in blocks."""
    parts = [(found.stored.start, found.stored.stop) for found in entries]
    return _blocks(_joined(parts, min(block_bytes, _SMALL_BYTES)), block_bytes)


def _halved(part: Range, last_bytes: int) -> Iterator[Range]:
    """Yield half of a part, half of the rest, and so on, until no more than `last_bytes` are left."""
    start, stop = part
    while stop - start > last_bytes:
        half = start + round_up((stop - start + 1) // 2)
        yield start, half
        start = half
    yield start, stop


def _blocks(parts: Iterable[Range], block_bytes: int) -> Iterator[Range]:
    """Divide the parts of a file, which are in order, into blocks that begin as direct I/O wants it."""
    for start, stop in parts:
        first = start // ALIGNMENT * ALIGNMENT
        for offset in range(first, stop, block_bytes):
            yield offset, min(offset + block_bytes, stop)


def _joined(parts: Sequence[Range], gap_bytes: int) -> Iterator[Range]:
    """Join parts between which so little lies that it is read too."""
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


def _read_part(descriptor: int, part: Range, memory: memoryview) -> None:
    start, stop = part
    whole = memory[: round_up(stop - start)]
    done = 0
    while done < stop - start:
        count = os.preadv(descriptor, [whole[done:]], start + done)
        if count == 0:
            raise EOFError(f"the file ends at byte {start + done}")
        done += count
