"""Loading a file in memory: its bytes are copied and checksummed where they are.

Reading them, as from a disk, would copy those of every tensor with a target twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from adapters.deepfreeze.arrivals import (
    Block,
    Group,
    Tensors,
    arrived_with,
    groups_of,
    mixed,
    without_bytes,
)
from adapters.deepfreeze.errors import Damaged
from adapters.deepfreeze.header import StoredFile
from adapters.deepfreeze.read_plan import in_order, plan_reads
from adapters.deepfreeze.stored import Match
from adapters.deepfreeze.tensor import Memory

# A block is still in the processor's cache when it is checksummed after it was copied.
_BLOCK_BYTES = 1 << 20


def copied(
    file: StoredFile, memory: memoryview, wanted: Sequence[Match], targets: Mapping[str, Memory]
) -> Tensors:
    """Copy the wanted tensors to their targets, and yield those without one in new memory.

    `memory` is that of the file. Raise Damaged if a checksum differs, or if a save has begun to
    write over the file meanwhile.
    """
    yield from without_bytes(wanted, targets)
    small, large = in_order(wanted)
    groups = groups_of(small, large, targets, are_read_directly=False)
    arrived = _arrived(_blocks(memory, groups), file)
    yield from mixed(arrived, targets, small, large)
    _check_unchanged(file, memory)


def _blocks(memory: memoryview, groups: Sequence[Group]) -> Iterator[Block]:
    """Yield the groups' blocks in order, each with the memory of the file itself."""
    plan = plan_reads([group.entries for group in groups], _BLOCK_BYTES)
    for number, (start, stop) in plan:
        yield Block(groups[number], start, stop, memory[start:stop])


def _arrived(blocks: Iterable[Block], file: StoredFile) -> Iterator[tuple[Group, Match]]:
    """Yield each tensor that has arrived with the bytes that were saved."""
    for block in blocks:
        for match in arrived_with(block, file):
            yield block.group, match


def _check_unchanged(file: StoredFile, memory: memoryview) -> None:
    """Raise Damaged if a save has begun to write over the file.

    It takes the length of the header away before it writes anything else. So as long as the header
    is the same, the bytes that were checksummed are those that were copied.
    """
    if memory[: len(file.header)] != file.header:
        raise Damaged(
            f"{file.path} was written over by a save while it was loaded; load the checkpoint from "
            "the disk, or another one"
        )
