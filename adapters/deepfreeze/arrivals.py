"""Tensors on their way from the blocks that are read of a file to their targets."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from adapters.deepfreeze import streaming
from adapters.deepfreeze.errors import Damaged
from adapters.deepfreeze.header import StoredFile
from adapters.deepfreeze.read_plan import SMALL_BYTES, Range
from adapters.deepfreeze.stored import Match
from adapters.deepfreeze.tensor import Bytes, Memory, bring, bytes_of
from adapters.shared.directio import ALIGNMENT, aligned_buffer, round_up

Tensors = Generator[tuple[str, Bytes], None, None]
"""Names and bytes."""


@dataclass(frozen=True)
class Block:
    """A part [start, stop) of a file whose bytes are in memory, for the tensors of one group."""

    group: Group
    start: int
    stop: int
    memory: memoryview


class Group:
    """Tensors of a file that are read or copied one after the other.

    If some have no target, the group has new memory for them. It is as the file is, from the page
    on in which the first tensor begins. If none of them has a target, blocks may be read directly
    into it. Otherwise the tensors are copied from the memory of the blocks.
    """

    def __init__(
        self, entries: Sequence[Match], targets: Mapping[str, Memory], are_read_directly: bool
    ) -> None:
        """Take the tensors in file order."""
        without_target = [match for match in entries if match.spec.name not in targets]
        self.is_direct = are_read_directly and len(without_target) == len(entries)
        self.entries = entries
        self._first = entries[0].stored.start // ALIGNMENT * ALIGNMENT
        end = round_up(entries[-1].stored.stop)
        size_bytes = end - self._first if without_target else 0
        self._memory = bytes_of(aligned_buffer(size_bytes))
        self.arrivals = deque(Arrival(match, self._target(match, targets)) for match in entries)

    def memory(self, start: int, stop: int) -> Bytes:
        """Return the new memory for a part of the file."""
        return self._memory[start - self._first : stop - self._first]

    def touched(self, part: Range) -> memoryview:
        """Return the new memory for a block after touching its pages.

        The first touch of a page is slow. In here it runs beside the reads of other blocks, and
        otherwise it would delay the read of this one.
        """
        start, stop = part
        memory = self.memory(start, round_up(stop))
        memory[::ALIGNMENT] = 0
        return memory.data

    def _target(self, match: Match, targets: Mapping[str, Memory]) -> Memory | None:
        """Return the memory that a tensor is copied to, or None if it is read there directly."""
        start, stop = match.stored.start, match.stored.stop
        if match.spec.name in targets:
            target = targets[match.spec.name]
            return target[match.skip_bytes : match.skip_bytes + stop - start]
        return None if self.is_direct else self.memory(start, stop)


class Arrival:
    """A tensor on its way from the file to its target."""

    def __init__(self, match: Match, target: Memory | None) -> None:
        self.match = match
        self.start = match.stored.start
        self.stop = match.stored.stop
        self._target = target
        self._hash = xxhash.xxh3_64()

    def take(self, block: Block) -> bool:
        """Take the tensor's bytes from a block, and return whether the last one was there."""
        start, stop = max(self.start, block.start), min(self.stop, block.stop)
        part = block.memory[start - block.start : stop - block.start]
        if self._target is not None:
            target = self._target[start - self.start : stop - self.start]
            bring(bytes_of(part), target, on_host=streaming.copy)
        self._hash.update(part)
        return stop == self.stop

    def check(self, file: StoredFile) -> None:
        """Raise Damaged if the bytes are not those that were saved."""
        if self._hash.hexdigest() != self.match.stored.digest:
            raise Damaged(
                f"{file.path} is damaged, because the checksum of tensor {self.match.stored.name} "
                "differs from that of the saved bytes; load another checkpoint"
            )


def groups_of(
    small: Sequence[Match],
    large: Sequence[Match],
    targets: Mapping[str, Memory],
    are_read_directly: bool,
) -> list[Group]:
    """Return the small tensors as a group, and the large ones as another, if there are some.

    With `are_read_directly`, the large ones may be read into new memory. Small ones never are,
    because the blocks of several are read as one.
    """
    groups = []
    if small:
        groups.append(Group(small, targets, are_read_directly=False))
    if large:
        groups.append(Group(large, targets, are_read_directly))
    return groups


def without_bytes(wanted: Iterable[Match], targets: Mapping[str, Memory]) -> Tensors:
    """Yield the tensors that have neither bytes nor a target."""
    for match in wanted:
        if not match.spec.size_bytes and match.spec.name not in targets:
            yield match.spec.name, np.empty(0, np.uint8)


def arrived_with(block: Block, file: StoredFile) -> Iterator[Match]:
    """Take the bytes of a block, and yield the tensors that are complete with it.

    Raise Damaged if one does not have the bytes that were saved.
    """
    arrivals = block.group.arrivals
    while arrivals and arrivals[0].start < block.stop:
        if not arrivals[0].take(block):
            break
        arrival = arrivals.popleft()
        arrival.check(file)
        yield arrival.match


def next_name(groups: Sequence[Group]) -> str:
    """Return the name of the tensor that arrives next."""
    waiting = next(group for group in groups if group.arrivals)
    return waiting.arrivals[0].match.stored.name


def mixed(
    arrived: Iterable[tuple[Group, Match]],
    targets: Mapping[str, Memory],
    small: Sequence[Match],
    large: Sequence[Match],
) -> Iterator[tuple[str, Bytes]]:
    """Yield the tensors without a target, in new memory.

    Large ones come as soon as they have arrived. After each large one, with a target or not, some
    of the small ones come that have arrived before, so that they are spread over all large ones.
    """
    at_once = len(small) // max(len(large), 1) + 1
    waiting: deque[tuple[str, Bytes]] = deque()
    for group, match in arrived:
        is_small = match.spec.size_bytes < SMALL_BYTES
        if match.spec.name not in targets:
            fresh = match.spec.name, group.memory(match.stored.start, match.stored.stop)
            if is_small:
                waiting.append(fresh)
            else:
                yield fresh
        if not is_small:
            for _ in range(min(at_once, len(waiting))):
                yield waiting.popleft()
    yield from waiting
