"""The engine: saves in the background, one at a time, and verified loads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from adapters.base import DirectIo, Pending
from adapters.deepfreeze import layout, streaming
from adapters.deepfreeze.arena import Arena, Origin
from adapters.deepfreeze.commit import Commit, CommonCommit
from adapters.deepfreeze.layout import Index, Layout
from adapters.deepfreeze.reader import Opened, Range, Reader, Tensors
from adapters.deepfreeze.snapshot import Snapshot, Stream
from adapters.deepfreeze.stored import found_in, open_stored
from adapters.deepfreeze.tensor import Bytes, Device, Memory, Source, Spec
from adapters.deepfreeze.writer import FileWriter, Frontier

_log = logging.getLogger("deepfreeze")


@dataclass(frozen=True)
class Ranks:
    """Where this process stands among those that save together.

    `session` is the same on all and no other job's.
    """

    rank: int
    world: int
    session: str


class Save(Pending):
    """A save in the background.

    What goes wrong there is raised by `finished`, or by the engine's next save: on all ranks alike.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        commit: Commit,
        io: DirectIo,
        step: int,
        on_whole: Callable[[], None],
    ) -> None:
        """`on_whole` is called once the arena has everything but the header that seals it."""
        self._error: BaseException | None = None
        self._told: BaseException | None = None
        layout = snapshot.layout
        frontier = Frontier(
            layout.data_start, layout.file_bytes, snapshot.block_bytes(io), len(snapshot.memory)
        )
        self._snapshot = snapshot
        self._commit = commit
        self._writer = FileWriter(commit.folder / layout.file, snapshot.memory, frontier, io)
        self._step = step
        self._on_whole = on_whole
        self._begun = False
        self._free = threading.Event()
        self._ended = threading.Event()
        self._taken = threading.Lock()  # by the thread that brings the save to its end
        self._thread = threading.Thread(target=self._run, name="deepfreeze-save")

    def start(self) -> None:
        """Copy what cannot wait, and leave the rest to the background.

        An interrupt is raised at once; a save that the background has by then goes on. Whatever
        else goes wrong is told later.
        """
        try:
            self._begun = True
            self._begin()
            self._thread.start()
        except BaseException as error:
            if not self._taken.acquire(blocking=False):
                raise
            self._error = error  # a thread may yet start, and finds nothing to do
            self._complete()
            if not isinstance(error, Exception):
                self._told = error
                raise

    def staged(self) -> None:
        """Return when all that training may change has been copied, which the waiting thread helps with. Raises no error."""
        if not self._begun:
            return
        # a save that never began has left the arena to the checkpoint before
        if self._error is None:
            try:
                self._snapshot.help()
            except BaseException as error:
                self._told = error
                raise
        self._free.wait()

    def finished(self) -> None:
        """Return when the checkpoint is durable and has its name."""
        self.join()
        if self._error is not None:
            self._told = self._error
            raise self._error

    def join(self) -> None:
        """Return when the save has come to its end, whatever that is.

        One that an interrupt has kept from beginning has none.
        """
        if self._begun:
            self._ended.wait()

    def untold(self) -> BaseException | None:
        """Wait for the end, and return what went wrong if nobody has been told, which is hereby done."""
        self.join()
        if self._error is self._told:
            return None
        self._told = self._error
        return self._error

    def cancel(self, error: BaseException) -> None:
        """Have `error`, which is told, instead of a checkpoint that is not there yet; return when nothing looks at the state."""
        self._told = error
        self._writer.stop(error)
        self.join()

    @property
    def is_durable(self) -> bool:
        """Whether a save that has come to its end has left a checkpoint."""
        return self._begun and self._error is None

    def __del__(self) -> None:
        """Say what went wrong where nobody has asked."""
        if self._error is not self._told and self._error is not None:
            _log.error(
                "%s was not saved, and nobody has asked: %s", self._commit.target, self._error
            )

    @property
    def is_whole(self) -> bool:
        """Whether its arena holds all of this rank's share, durable or not."""
        return self._snapshot.is_whole

    def _begin(self) -> None:
        """Do what has to be done before `save` returns; what goes wrong is told like what goes wrong in the background.

        The file is opened here: in the background, every system call would wait for the interpreter
        while others copy.
        """
        try:
            self._commit.begin()  # first: without it, the other ranks would not learn of an error
            self._snapshot.begin()
            self._writer.open()
        except Exception as error:
            self._error = error

    def _run(self) -> None:
        if self._taken.acquire(blocking=False):
            self._complete()

    def _complete(self) -> None:
        try:
            if self._error is not None:
                raise self._error
            self._commit.finish(self._write())
        except BaseException as error:
            self._error = error
            self._give_up()
        finally:
            self._free.set()
            self._ended.set()

    def _write(self) -> str:
        """Copy, checksum and write, overlapped; returns the digest of the file's header."""
        snapshot, writer = self._snapshot, self._writer
        header, seal = snapshot.layout.header(
            self._step, snapshot.copy(writer.frontier, self._free.set)
        )
        writer.drain()
        self._on_whole()
        snapshot.seal(header)
        writer.finish(len(header), snapshot.layout.file_bytes)
        writer.close()
        return seal

    def _give_up(self) -> None:
        with ExitStack() as ends:
            ends.callback(self._commit.abandon)  # whatever happens, the other ranks are told
            ends.callback(self._writer.close)
            self._snapshot.give_up()


class Engine:
    """Saves and loads states of the same shape over and over.

    Its memory is its arenas': a new save waits for the one before.
    """

    def __init__(
        self,
        ranks: Ranks,
        io: DirectIo,
        metadata: Mapping[str, str],
        arenas: Sequence[Arena],
        ring_bytes: int | None = None,
        first_arena: int = 0,
        device: Device | None = None,
    ) -> None:
        """`metadata` goes into every file's header; the arenas take turns, from the given one on, which is the same on all ranks.

        With `ring_bytes` an arena is no larger, and the state must not change before a save is
        finished. `device` has what of the state is not on the host.
        """
        streaming.compiled()  # now, and not in the first save
        self._ranks = ranks
        self._io = io
        self._metadata = dict(metadata)
        self._arenas = arenas
        self._ring_bytes = ring_bytes
        self._layout: Layout | None = None
        self._index: Index | None = None  # of several ranks' files, where this one writes it
        self._device = device
        self._reader = Reader(io, device)
        # what a load of a file such as this engine writes reads first
        self._first: tuple[Range, ...] = ()
        self._begun: Opened | None = None  # of a load that is still being prepared
        self._last: Save | None = None
        self._asked = 0  # how often for a save
        # of the arenas: the one that does not hold the newest checkpoint in memory
        self._turn = first_arena
        self.home = ""  # of the checkpoints, where they have one: memory is of the same

    @property
    def session(self) -> str:
        """What all ranks of this job call it."""
        return self._ranks.session

    def prepare(self, specs: Sequence[Spec]) -> None:
        """Save such tensors from now on, and have the memory for it."""
        self.join()
        plan = layout.lay_out(specs, self._ranks.rank, self._ranks.world, self._metadata)
        self._index = (
            layout.index(specs, self._ranks.world)
            if self._ranks.rank == 0 and self._ranks.world > 1
            else None
        )
        self._layout = plan
        self._first = self._reader.first(found_in(plan)) if self._ranks.world == 1 else ()
        for arena in self._arenas:
            self._fitted(arena, plan)

    def save(self, sources: Mapping[str, Source], path: Path, step: int) -> Save:
        """Begin to save the prepared tensors under `path`, once the save before is finished; raises what that one has not told yet.

        Of several ranks, some may have been told by then. They count on all to take part, so one
        that raises begins nevertheless: the save is not to be repeated.
        """
        self.skip()
        error = self._forget()
        if error is not None and self._ranks.world == 1:
            raise error
        plan = self._layout
        assert plan is not None  # something was prepared
        arena = self._arenas[self._turn % len(self._arenas)]
        commit = self._commit(path)
        try:
            share = {entry.piece.spec.name: sources[entry.piece.spec.name] for entry in plan.placed}
            snapshot = (Snapshot if self._ring_bytes is None else Stream)(
                plan, self._fitted(arena, plan), share, self._device
            )
        except Exception as own:
            self._tell_others(commit)
            raise own from error
        on_whole = partial(arena.note, plan.file, Origin(self._tag, self.home))
        self._last = Save(snapshot, commit, self._io, step, on_whole)
        self._last.start()
        if error is not None:
            self._raise_beside(self._last, error)
        return self._last

    def skip(self) -> None:
        """Count a save, whatever becomes of it: ranks that cannot all begin it go on to call the next one by the same number."""
        self._asked += 1

    def refuse(self, path: Path) -> None:
        """Count a save that cannot begin, and have the other ranks know at once."""
        self.skip()
        self._tell_others(self._commit(path))

    def expect(self, path: Path) -> None:
        """Begin to read what the load of `path` into targets that follows reads first, while the caller still prepares it.

        That is known where a checkpoint is one file, laid out as this engine would do it: of any
        other, all is read later. The header comes into the page cache first: asked for beside the
        large reads, it waited for two of them.
        """
        self._forget_begun()
        if self._first and self._layout is not None:
            file = path / self._layout.file
            with suppress(OSError):  # the load itself says what is wrong
                with file.open("rb") as header:
                    header.read(self._layout.data_start)
                self._begun = self._reader.begin(file, self._first)

    def load(
        self, path: Path, specs: Sequence[Spec], targets: Mapping[str, Memory]
    ) -> dict[str, Bytes]:
        """Bring the tensors to their targets' memory, and return those without a target in new memory.

        Raises Damaged for a checkpoint that is not what was written, and Unfitting for one of
        another state; what has been read until then is in the targets.
        """
        return dict(self.arriving(path, specs, targets))

    def arriving(self, path: Path, specs: Sequence[Spec], targets: Mapping[str, Memory]) -> Tensors:
        """Load and yield those without a target, each once it is there, so that what follows runs beside the reads.

        Who does not take all of them has to close what is returned: threads are still reading.
        """
        try:
            yield from self._arriving(path, specs, targets)
        finally:
            self._forget_begun()

    def _arriving(
        self, path: Path, specs: Sequence[Spec], targets: Mapping[str, Memory]
    ) -> Tensors:
        if self._last is not None:
            self._last.staged()  # what is still to be copied must not be loaded over
        if self._device is not None:
            self._device.follow()
        is_arena = path in [arena.folder for arena in self._arenas]
        located = open_stored(path, is_arena).locate(specs, self._ranks.rank)
        divided = {
            found.spec
            for _, entries in located
            for found in entries
            if found.stored.shape != found.spec.shape
        }
        gathered = {
            spec.name: np.empty(spec.size_bytes, np.uint8)
            for spec in divided
            if spec.name not in targets
        }
        for file, entries in located:
            yield from self._reader.read(file, entries, {**targets, **gathered}, self._begun)
        yield from gathered.items()

    def join(self) -> None:
        """Return when nothing is in flight."""
        if self._last is not None:
            self._last.join()

    def wait(self) -> None:
        """Return when nothing is in flight; raise what went wrong in the background and nobody has been told."""
        error = self._forget()
        if error is not None:
            raise error

    def close(self) -> None:
        """Return when nothing is in flight, and let go of the memory; raise what went wrong and nobody has been told."""
        try:
            self._forget_begun()
            self.wait()
        finally:
            if self._last is None:  # an interrupt may have come first
                self._reader.close()
                for arena in self._arenas:
                    arena.release()

    def cancel(self, error: BaseException) -> None:
        """Have no checkpoint of what is in flight, for `error`, and return when nothing looks at the state any more."""
        if self._last is not None:
            self._last.cancel(error)

    def _forget(self) -> BaseException | None:
        """Return when nothing is in flight, with what went wrong and nobody has been told."""
        if self._last is None:
            return None
        self._last.join()  # before it is forgotten: an interrupt here leaves it in flight
        last, self._last = self._last, None
        self._turn += self._is_kept(last)
        return last.untold()

    def _forget_begun(self) -> None:
        """Return when nothing is being read for a load."""
        if self._begun is not None:
            # before it is forgotten: an interrupt here leaves it to the next call
            self._begun.close()
            self._begun = None

    def _raise_beside(self, save: Save, error: BaseException) -> None:
        """Raise what went wrong before, when the state may change again: nobody gets to hold the save that has begun."""
        try:
            save.staged()
        except BaseException as interrupt:
            save.cancel(interrupt)
            raise
        raise error

    def _tell_others(self, commit: Commit) -> None:
        """Fail a save on all ranks that this one cannot begin."""
        if self._ranks.world == 1:
            return
        try:
            with suppress(Exception):  # what keeps this rank from it is the error to tell
                commit.begin()
        finally:
            commit.abandon()

    @property
    def _tag(self) -> str:
        """What tells the present save from all others, the same on every rank."""
        return f"{self._ranks.session}-{self._asked}"

    def _is_kept(self, save: Save) -> bool:
        """Whether memory now holds the save.

        Several ranks go by what all know, or else their arenas would part.
        """
        return save.is_durable or (save.is_whole and self._ranks.world == 1)

    def _fitted(self, arena: Arena, plan: Layout) -> memoryview:
        if self._ring_bytes is None:
            return arena.fit(plan.file, plan.file_bytes)
        return arena.fit(plan.file, max(plan.data_start, min(plan.file_bytes, self._ring_bytes)))

    def _commit(self, path: Path) -> Commit:
        ranks = self._ranks
        if ranks.world == 1:
            return Commit(path, self._tag)
        return CommonCommit(path, self._tag, ranks.rank, ranks.world, self._sealed_index)

    def _sealed_index(self, seals: Mapping[str, str]) -> bytes:
        assert self._index is not None  # there are shares to seal
        return self._index.sealed(seals)
