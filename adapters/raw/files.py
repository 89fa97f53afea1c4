"""The state's bytes in one plain file from every rank, without a header."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from adapters.base import Method, Pending
from adapters.raw.framework import State
from adapters.shared.directio import (
    ALIGNMENT,
    open_for_read,
    open_for_write,
    read_all,
    round_up,
    sync_directory,
    write_all,
    write_blocks,
)

Part = tuple[memoryview, int]  # a piece of the state's memory, and its offset in the file


class RankFiles(Method[State]):
    """Each rank writes a share of the replicated leaves, and all of its rank-local leaves."""

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir(exist_ok=True)  # because every rank makes it
        state.to_host()
        self.write(self.file(path, self.place.rank), self.parts(state, self.place.rank))
        sync_directory(path)
        sync_directory(path.parent)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        for rank in range(self.place.world):
            parts = self.parts(state, rank)
            wanted = parts if rank == self.place.rank else parts[:1]
            self.read(self.file(path, rank), wanted)
        state.from_host()

    def write(self, file: Path, parts: list[Part]) -> None:
        """Write parts to a file that does not exist, and flush it."""
        raise NotImplementedError

    def read(self, file: Path, parts: list[Part]) -> None:
        """Read a file into parts."""
        raise NotImplementedError

    def file(self, path: Path, rank: int) -> Path:
        """Return the file that a rank writes."""
        return path / f"rank-{rank}.bin"

    def parts(self, state: State, rank: int) -> list[Part]:
        """Return a rank's share of the replicated bytes, and behind it the rank-local bytes."""
        return self.parts_of(state.host, state.local_start, rank)

    def parts_of(self, host: memoryview, local_start: int, rank: int) -> list[Part]:
        """Return the parts of a state's bytes, of which those of the rank begin at `local_start`.

        In a world of one rank they are one piece, because they are neighbours in memory.
        """
        world = self.place.world
        if world == 1:
            return [(host, 0)]
        share_bytes = round_up(-(-local_start // world), ALIGNMENT)
        start = min(rank * share_bytes, local_start)
        stop = min((rank + 1) * share_bytes, local_start)
        return [(host[start:stop], 0), (host[local_start:], stop - start)]


class Direct(RankFiles):
    """Aligned O_DIRECT requests of the size and depth that are fastest here, then fsync."""

    def write(self, file: Path, parts: list[Part]) -> None:
        io = self.place.io
        descriptor = open_for_write(file, io.direct)
        try:
            write_blocks(descriptor, parts[0][0], len(parts[0][0]), io.block_bytes, io.depth)
            for data, offset in parts[1:]:
                write_all(descriptor, data, offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, file: Path, parts: list[Part]) -> None:
        descriptor = open_for_read(file, self.place.io.direct)
        try:
            for data, offset in parts:
                for start, block in _blocks(data, self.place.io.block_bytes):
                    read_all(descriptor, block, offset + start)
        finally:
            os.close(descriptor)


class Buffered(RankFiles):
    """Plain writes through the page cache, then fsync."""

    def write(self, file: Path, parts: list[Part]) -> None:
        with file.open("wb", buffering=0) as stream:
            for data, offset in parts:
                write_all(stream.fileno(), data, offset)
            os.fsync(stream.fileno())

    def read(self, file: Path, parts: list[Part]) -> None:
        with file.open("rb", buffering=0) as stream:
            for data, offset in parts:
                read_all(stream.fileno(), data, offset)


def _blocks(data: memoryview, block_bytes: int) -> Iterator[tuple[int, memoryview]]:
    for start in range(0, len(data), block_bytes):
        yield start, data[start : start + block_bytes]
