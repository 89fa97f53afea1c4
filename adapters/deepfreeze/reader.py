"""Reading files back: reads run ahead, while blocks that have come are copied and checksummed."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

from adapters.base import DirectIo
from adapters.deepfreeze.arena import pinned
from adapters.deepfreeze.arrivals import (
    Block,
    Group,
    Tensors,
    arrived_with,
    groups_of,
    mixed,
    next_name,
    without_bytes,
)
from adapters.deepfreeze.errors import Damaged
from adapters.deepfreeze.header import StoredFile
from adapters.deepfreeze.opened_file import EarlyRead, OpenedFile
from adapters.deepfreeze.read_plan import Range, in_order, plan_reads
from adapters.deepfreeze.stored import Match
from adapters.deepfreeze.tensor import Device, Memory, bytes_of
from adapters.shared.directio import ALIGNMENT, aligned_buffer, give_back, round_up

# So many blocks are waiting for a thread or being copied, besides those that are being read.
_AHEAD = 2
# All blocks together are no larger than this.
_RING_BYTES = 48 << 20


class Reader:
    """Reads tensors from files. Its memory is a ring of blocks that every read uses again."""

    def __init__(self, io: DirectIo, device: Device | None = None) -> None:
        """`device` holds some of the targets, if there is one."""
        self._direct = io.direct
        self._device = device
        self._depth = io.depth
        slots = io.depth + _AHEAD
        slot_bytes = _RING_BYTES // slots // ALIGNMENT * ALIGNMENT
        self._block_bytes = min(round_up(io.block_bytes), slot_bytes)
        self._ring = [aligned_buffer(self._block_bytes) for _ in range(slots)]
        for slot in self._ring:
            # The first touch of a page is slow. It must not happen in the first load.
            bytes_of(slot)[::ALIGNMENT] = 0
        self._unpins = (
            [pinned(device.pin, slot, self) for slot in self._ring] if device is not None else []
        )

    def close(self) -> None:
        """Free the ring. Nothing must be being read any more. A second call does nothing."""
        while self._unpins:
            self._unpins.pop()()
        for slot in self._ring:
            give_back(slot)

    def first_parts(self, wanted: Sequence[Match]) -> tuple[Range, ...]:
        """Return the parts of a file that a read of these tensors reads first.

        There are as many as there is memory for.
        """
        plan = plan_reads(in_order(wanted), self._block_bytes)
        return tuple(part for _, part in islice(plan, len(self._ring)))

    def begin(self, path: Path, parts: Sequence[Range]) -> OpenedFile:
        """Start to read parts of a file.

        `read` takes those of them that it would read first, and reads all others.
        """
        opened = OpenedFile(path, self._direct, self._depth)
        try:
            for part, slot in zip(parts, self._ring, strict=False):
                opened.early.append(EarlyRead(part, slot, opened.read(part, slot)))
        except BaseException:
            # Nobody else can close it yet.
            opened.close()
            raise
        return opened

    def read(
        self,
        file: StoredFile,
        wanted: Sequence[Match],
        targets: Mapping[str, Memory],
        begun: OpenedFile | None = None,
    ) -> Tensors:
        """Read the wanted tensors into their targets, and yield those without one in new memory.

        Each is yielded once it has arrived. Small tensors, of which there are many, are read first
        and yielded between the large ones. So the caller works on them beside the reads, and never
        so long at a stretch that the reading threads wait for the interpreter. `begun` is the same
        file, or one that is not wanted any more.

        Raise Damaged if a checksum differs or the file ends early, and OSError if it cannot be
        read. A caller that does not take all tensors must close the generator.
        """
        yield from without_bytes(wanted, targets)
        small, large = in_order(wanted)
        groups = groups_of(small, large, targets, are_read_directly=True)
        with closing(self._read(file, groups, begun)) as arrived:
            yield from mixed(arrived, targets, small, large)

    def _read(
        self, file: StoredFile, groups: Sequence[Group], begun: OpenedFile | None
    ) -> Generator[tuple[Group, Match], None, None]:
        """Yield each tensor that has arrived with the bytes that were saved."""
        if begun is not None and begun.path != file.path:
            # Its threads write to the ring.
            begun.close()
            begun = None
        opened = begun or OpenedFile(file.path, self._direct, self._depth)
        try:
            with closing(self._read_ahead(opened, groups)) as blocks:
                for block in blocks:
                    for match in arrived_with(block, file):
                        yield block.group, match
                    # The block's memory is read into again after this.
                    self._wait()
        except EOFError as error:
            raise Damaged(
                f"{file.path} is cut off in tensor {next_name(groups)}, because {error}; "
                "load another checkpoint"
            ) from error
        except OSError as error:
            reason = f"{error.strerror}, in tensor {next_name(groups)}"
            raise OSError(error.errno, reason, str(file.path)) from error
        finally:
            self._finish(opened)

    def _finish(self, opened: OpenedFile) -> None:
        """Close the file, once the device has no copies to do."""
        try:
            # The error of a device that fails was raised already.
            with suppress(Exception):
                self._wait()
        finally:
            opened.close()

    def _wait(self) -> None:
        """Return when nothing is being copied to the device."""
        if self._device is not None:
            self._device.mark()()

    def _read_ahead(
        self, opened: OpenedFile, groups: Sequence[Group]
    ) -> Generator[Block, None, None]:
        """Yield the groups' blocks in order.

        The memory of a block is read into again when the caller asks for the next one.
        """
        ahead: deque[tuple[Block, Future[None]]] = deque()
        plan = plan_reads([group.entries for group in groups], self._block_bytes)
        for block_number, (group_number, part) in enumerate(plan):
            if len(ahead) == len(self._ring):
                yield _come(*ahead.popleft())
            group = groups[group_number]
            slot = self._ring[block_number % len(self._ring)]
            memory = group.touched(part) if group.is_direct else slot
            coming = opened.take_early(part, memory) or opened.read(part, memory)
            ahead.append((Block(group, *part, memory), coming))
        while ahead:
            yield _come(*ahead.popleft())


def _come(block: Block, coming: Future[None]) -> Block:
    """Return a block when it is read.

    Raise EOFError if the file ends early, and OSError if it cannot be read.
    """
    coming.result()
    return block
