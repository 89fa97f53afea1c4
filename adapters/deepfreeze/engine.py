"""The engine: saves in the background, one at a time, and verified loads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from adapters.base import DirectIo, Pending
from adapters.deepfreeze import layout
from adapters.deepfreeze.arena import Arena
from adapters.deepfreeze.commit import Commit, CommonCommit
from adapters.deepfreeze.layout import Layout
from adapters.deepfreeze.reader import Reader
from adapters.deepfreeze.snapshot import Snapshot, Stream
from adapters.deepfreeze.stored import open_stored
from adapters.deepfreeze.tensor import Bytes, Spec, Tensor
from adapters.deepfreeze.writer import FileWriter, Frontier


@dataclass(frozen=True)
class Ranks:
    """Where this process stands among those that save together. `session` is the same on all and no other job's."""

    rank: int
    world: int
    session: str


class Save(Pending):
    """A save in the background. What goes wrong there is raised by `staged` and `finished`."""

    def __init__(self, snapshot: Snapshot, commit: Commit, io: DirectIo, step: int) -> None:
        self._snapshot = snapshot
        self._commit = commit
        self._io = io
        self._step = step
        self._free = threading.Event()
        self._error: BaseException | None = None
        self._told = False
        self._thread = threading.Thread(target=self._run, name="deepfreeze-save")

    def start(self) -> None:
        """Copy what cannot wait, and leave the rest to the background.

        The file is opened here: in the background, every system call would wait for the interpreter while others copy.
        """
        try:
            self._commit.begin()  # first: without it, the other ranks would not learn of an error
            self._snapshot.begin()
            self._writer = self._open()
        except BaseException as error:
            self._error = error
        self._thread.start()

    def staged(self) -> None:
        """Return when all that training may change has been copied, which the waiting thread helps with."""
        self._snapshot.help()
        self._free.wait()
        if self._error is not None:
            self.finished()

    def finished(self) -> None:
        """Return when the checkpoint is durable and has its name."""
        self._thread.join()
        if self._error is not None:
            self._told = True
            raise self._error

    @property
    def is_durable(self) -> bool:
        """Whether a save that has come to its end has left a checkpoint."""
        return self._error is None

    def settle(self) -> None:
        """Wait for the end, and raise what went wrong if nobody has been told."""
        self._thread.join()
        if not self._told:
            self.finished()

    def _run(self) -> None:
        try:
            if self._error is not None:
                raise self._error
            self._commit.finish(self._write())
        except BaseException as error:
            self._error = error
            self._snapshot.tensors.clear()
            self._commit.abandon()
        finally:
            self._free.set()

    def _open(self) -> FileWriter:
        snapshot, layout = self._snapshot, self._snapshot.layout
        frontier = Frontier(layout.data_start, layout.file_bytes, snapshot.block_bytes(self._io), len(snapshot.memory))
        return FileWriter(self._commit.folder / layout.file, snapshot.memory, frontier, self._io)

    def _write(self) -> str:
        """Copy, checksum and write, overlapped; returns the digest of the file's header."""
        snapshot, writer = self._snapshot, self._writer
        try:
            header, seal = snapshot.layout.header(self._step, snapshot.copy(writer.frontier, self._free.set))
            writer.finish(header, snapshot.layout.file_bytes)
        finally:
            writer.close()
        return seal


class Engine:
    """Saves and loads states of the same shape over and over. Its memory is its arenas': a new save waits for the one before."""

    def __init__(
        self, ranks: Ranks, io: DirectIo, metadata: Mapping[str, str], arenas: Sequence[Arena], ring_bytes: int | None = None
    ) -> None:
        """`metadata` goes into every file's header; the arenas take turns.

        With `ring_bytes` an arena is no larger, and the state must not change before a save is finished.
        """
        self._ranks = ranks
        self._io = io
        self._metadata = dict(metadata)
        self._arenas = arenas
        self._ring_bytes = ring_bytes
        self._specs: tuple[Spec, ...] = ()
        self._layout: Layout | None = None
        self._reader = Reader(io)
        self._last: Save | None = None
        self._saves = 0
        self._turn = 0  # of the arenas: after a save that failed, the other one still holds the last that did not

    @property
    def session(self) -> str:
        """What all ranks of this job call it."""
        return self._ranks.session

    def prepare(self, specs: Sequence[Spec]) -> None:
        """Have the memory for saves of such tensors."""
        plan = self._planned(specs)
        for arena in self._arenas:
            self._fitted(arena, plan)

    def save(self, tensors: Iterable[Tensor], path: Path, step: int) -> Save:
        """Begin to save under `path`, once the save before is finished; raises what that one has not told yet."""
        self.wait()
        named = {tensor.spec.name: tensor for tensor in tensors}
        specs = tuple(tensor.spec for tensor in named.values())
        plan = self._planned(specs)
        arena = self._arenas[self._turn % len(self._arenas)]
        share = {entry.piece.spec.name: named[entry.piece.spec.name] for entry in plan.placed}
        snapshot = (Snapshot if self._ring_bytes is None else Stream)(plan, self._fitted(arena, plan), share)
        self._last = Save(snapshot, self._commit(path, specs), self._io, step)
        self._saves += 1
        self._last.start()
        return self._last

    def load(self, path: Path, specs: Sequence[Spec], targets: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """Bring the tensors to their targets' memory, and return those without a target in new memory.

        Raises Damaged for a checkpoint that is not what was written, and Unfitting for one of another state; what has been read
        until then is in the targets.
        """
        return dict(self.arriving(path, specs, targets))

    def arriving(self, path: Path, specs: Sequence[Spec], targets: Mapping[str, Bytes]) -> Iterator[tuple[str, Bytes]]:
        """Load and yield those without a target, each once it is there, so that what follows runs beside the reads."""
        located = open_stored(path).locate(specs, self._ranks.rank)
        divided = {found.spec for _, entries in located for found in entries if found.stored.shape != found.spec.shape}
        gathered = {spec.name: np.empty(spec.size_bytes, np.uint8) for spec in divided if spec.name not in targets}
        for file, entries in located:
            yield from self._reader.read(file, entries, {**targets, **gathered})
        yield from gathered.items()

    def wait(self) -> None:
        """Return when nothing is in flight; raise what went wrong in the background and nobody has been told."""
        if self._last is not None:
            last, self._last = self._last, None
            last.settle()
            self._turn += last.is_durable

    def _fitted(self, arena: Arena, plan: Layout) -> memoryview:
        if self._ring_bytes is None:
            return arena.fit(plan.file, plan.file_bytes)
        return arena.fit(plan.file, max(plan.data_start, min(plan.file_bytes, self._ring_bytes)))

    def _planned(self, specs: Sequence[Spec]) -> Layout:
        if self._layout is None or tuple(specs) != self._specs:
            self._layout = layout.lay_out(specs, self._ranks.rank, self._ranks.world, self._metadata)
            self._specs = tuple(specs)
        return self._layout

    def _commit(self, path: Path, specs: Sequence[Spec]) -> Commit:
        ranks = self._ranks
        tag = f"{ranks.session}-{self._saves}"
        if ranks.world == 1:
            return Commit(path, tag)
        return CommonCommit(path, tag, ranks.rank, ranks.world, partial(layout.index, specs, ranks.world))
