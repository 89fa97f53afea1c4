"""The plan of a load: which parts of a file are read, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from adapters.deepfreeze.stored import Match
from adapters.shared.directio import ALIGNMENT, round_up

# A state has many tensors that are smaller than this, and few that are larger.
SMALL_BYTES = 1 << 20
# The last block that is read is no larger than this.
_LAST_BYTES = 2 << 20

Range = tuple[int, int]
"""The part [start, stop) of a file, in bytes."""


def in_order(wanted: Iterable[Match]) -> tuple[list[Match], list[Match]]:
    """Return the small tensors that have bytes, and the large ones, each in file order."""
    with_bytes = [match for match in wanted if match.spec.size_bytes]
    with_bytes.sort(key=lambda match: match.stored.start)
    small = [match for match in with_bytes if match.spec.size_bytes < SMALL_BYTES]
    large = [match for match in with_bytes if match.spec.size_bytes >= SMALL_BYTES]
    return small, large


def plan_reads(groups: Sequence[Sequence[Match]], block_bytes: int) -> Iterator[tuple[int, Range]]:
    """Yield the parts of a file to read for groups of its tensors, each with its group's number.

    The parts are blocks. The last one is divided into ever smaller ones, because nothing is being
    read any more while the very last one is copied to its target.
    """
    plan: list[tuple[int, Range]] = []
    for number, entries in enumerate(groups):
        plan += [(number, part) for part in _parts(entries, block_bytes)]
    _join_last_two(plan)
    yield from plan[:-1]
    for number, part in plan[-1:]:
        for smaller in _halved(part, min(_LAST_BYTES, block_bytes)):
            yield number, smaller


def _join_last_two(plan: list[tuple[int, Range]]) -> None:
    """Join the last two parts if they are neighbours. Half of both is no larger than a block."""
    if len(plan) < 2:
        return
    (number, (start, middle)), (last_number, (last_start, stop)) = plan[-2:]
    if number == last_number and middle == last_start:
        plan[-2:] = [(number, (start, stop))]


def _parts(entries: Sequence[Match], block_bytes: int) -> Iterator[Range]:
    """Yield the parts of a file to read for some of its tensors, in blocks."""
    ranges = [(match.stored.start, match.stored.stop) for match in entries]
    return _blocks(_joined(ranges, min(block_bytes, SMALL_BYTES)), block_bytes)


def _joined(ranges: Sequence[Range], gap_bytes: int) -> list[Range]:
    """Join ranges if the gap between them is so small that it is read too."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and start - joined[-1][1] < gap_bytes:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _blocks(ranges: Iterable[Range], block_bytes: int) -> Iterator[Range]:
    """Divide ranges, which are in order, into blocks that begin at a multiple of ALIGNMENT."""
    for start, stop in ranges:
        first = start // ALIGNMENT * ALIGNMENT
        for offset in range(first, stop, block_bytes):
            yield offset, min(offset + block_bytes, stop)


def _halved(part: Range, last_bytes: int) -> Iterator[Range]:
    """Yield half of a part, half of the rest, and so on, until `last_bytes` or less are left."""
    start, stop = part
    while stop - start > last_bytes:
        half = start + round_up((stop - start + 1) // 2)
        yield start, half
        start = half
    yield start, stop
