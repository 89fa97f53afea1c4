"""The state's bytes in one plain file a rank, without any header: its layout is the workload's."""

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

Part = tuple[memoryview, int]  # a piece of the state's memory and its offset in the file


class RankFiles(Method[State]):
    """Each rank writes its share of what all have, and what it alone has."""

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir(exist_ok=True)  # every rank comes here
        state.to_host()
        self.write(self.file(path, self.place.rank), self.parts(state, self.place.rank))
        sync_directory(path)
        sync_directory(path.parent)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        for rank in range(self.place.world):
            parts = self.parts(state, rank)
            own = parts if rank == self.place.rank else parts[:1]
            self.read(self.file(path, rank), own)
        state.from_host()

    def write(self, file: Path, parts: list[Part]) -> None:
        raise NotImplementedError

    def read(self, file: Path, parts: list[Part]) -> None:
        raise NotImplementedError

    def file(self, path: Path, rank: int) -> Path:
        """Where a rank writes."""
        return path / f"rank-{rank}.bin"

    def parts(self, state: State, rank: int) -> list[Part]:
        """A rank's share of the replicated bytes, and the rank-local bytes behind it; one piece where they are neighbours."""
        world = self.place.world
        if world == 1:
            return [(state.host, 0)]
        share = round_up(-(-state.local_start // world), ALIGNMENT)
        shared = state.host[
            min(rank * share, state.local_start) : min((rank + 1) * share, state.local_start)
        ]
        return [(shared, 0), (state.host[state.local_start :], len(shared))]


class Direct(RankFiles):
    """Aligned O_DIRECT requests of the size and depth that the directory takes fastest, then fsync."""

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
