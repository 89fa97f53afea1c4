"""The engine: saves in the background, one at a time, and verified loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from adapters.base import DirectIo
from adapters.deepfreeze import layout, streaming
from adapters.deepfreeze.arena import Arena, Origin, SharedArena
from adapters.deepfreeze.arrivals import Tensors
from adapters.deepfreeze.commit import Commit
from adapters.deepfreeze.common_commit import CommonCommit
from adapters.deepfreeze.layout import Index, Layout
from adapters.deepfreeze.loader import Loader
from adapters.deepfreeze.processes import Process
from adapters.deepfreeze.ring_snapshot import RingSnapshot
from adapters.deepfreeze.save import Save
from adapters.deepfreeze.snapshot import Snapshot
from adapters.deepfreeze.tensor import Bytes, Device, Memory, Source, Spec


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that save together.

    `session` names the job. It is the same on all ranks, and no other job has it. `processes` has
    the process of every rank, as far as they are known.
    """

    rank: int
    world: int
    session: str
    processes: Sequence[Process | None] = ()


class Engine:
    """Saves and loads states of the same shape over and over.

    Its memory is its arenas. A new save waits until the one before has ended.
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
        """Take the memory, and what every file's header says besides.

        The arenas take turns. `first_arena` is the number of the first one, the same on all ranks.
        With `ring_bytes` an arena is no larger than that, and the state must not change before a
        save has finished. `device` holds the part of the state that is not on the host.
        """
        # Compile now, and not in the first save.
        streaming.compiled()
        self._ranks = ranks
        self._io = io
        self._metadata = dict(metadata)
        self._arenas = arenas
        self._ring_bytes = ring_bytes
        self._device = device
        self._loader = Loader(io, ranks.rank, device)
        self._layout: Layout | None = None
        # the index of several ranks' files, on the rank that writes it
        self._index: Index | None = None
        self._last: Save | None = None
        self._save_count = 0
        # the arena of the next save, which does not hold the newest checkpoint in memory
        self._turn = first_arena
        # the name of the store's directory, which is noted in a shared arena; empty without a store
        self.home = ""

    @property
    def session(self) -> str:
        """The name of this job, the same on all ranks."""
        return self._ranks.session

    def prepare(self, specs: Sequence[Spec]) -> None:
        """Save tensors of these specs from now on, and make the memory for them."""
        self.join()
        rank, world = self._ranks.rank, self._ranks.world
        plan = layout.lay_out(specs, rank, world, self._metadata)
        writes_index = rank == 0 and world > 1
        self._index = layout.index(specs, world) if writes_index else None
        self._layout = plan
        self._loader.prepare(plan, world)
        for arena in self._arenas:
            self._fitted(arena, plan)

    def save(self, sources: Mapping[str, Source], path: Path, step: int) -> Save:
        """Wait for the save before, and start to save the prepared tensors under `path`.

        If the save before failed and nobody was told, raise its error here. In a world of several
        ranks, some may know of it and some not, and all must take part in this save. So the rank
        that raises has started this save nevertheless, and must not repeat it.
        """
        self.skip()
        earlier_error = self._finish_last()
        if earlier_error is not None and self._ranks.world == 1:
            raise earlier_error
        self._last = self._new_save(sources, path, step, earlier_error)
        self._last.start()
        if earlier_error is not None:
            self._raise_earlier(earlier_error, self._last)
        return self._last

    def skip(self) -> None:
        """Count a save, whatever becomes of it.

        Ranks that cannot all start it must still give the next one the same number.
        """
        self._save_count += 1

    def refuse(self, path: Path) -> None:
        """Count a save that this rank cannot start, and let the other ranks know at once."""
        self.skip()
        self._fail_on_all_ranks(self._new_commit(path))

    def expect(self, path: Path) -> None:
        """Start to read what the load of `path` reads first, while the caller still prepares it."""
        self._loader.expect(path, self._arena_in(path))

    def load(
        self, path: Path, specs: Sequence[Spec], targets: Mapping[str, Memory]
    ) -> dict[str, Bytes]:
        """Load the tensors into their targets, and return those without a target in new memory.

        Raise Damaged if the checkpoint does not hold what was saved, and Unfitting if it is one of
        another state. The targets then hold what was read until then.
        """
        return dict(self.arriving(path, specs, targets))

    def arriving(self, path: Path, specs: Sequence[Spec], targets: Mapping[str, Memory]) -> Tensors:
        """Load, and yield each tensor without a target once it has arrived.

        So the caller can work on it beside the reads. What it has taken is valid only once the
        generator has ended, because a save may write over a checkpoint in memory meanwhile. A
        caller that does not take all tensors must close the generator, because threads are still
        reading.
        """
        try:
            if self._last is not None:
                # A tensor that is not copied yet must not be loaded over.
                self._last.staged()
            yield from self._loader.arriving(path, specs, targets, self._arena_in(path))
        finally:
            self._loader.stop_expecting()

    def join(self) -> None:
        """Return when no save is in flight."""
        if self._last is not None:
            self._last.join()

    def wait(self) -> None:
        """Return when no save is in flight. Raise its error if nobody was told."""
        error = self._finish_last()
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait until nothing is in flight, and free the memory.

        Raise the error of the last save if nobody was told.
        """
        try:
            self._loader.stop_expecting()
            self.wait()
        finally:
            # After an interrupt, the last save may still use the memory.
            if self._last is None:
                self._loader.close()
                for arena in self._arenas:
                    arena.release()

    def cancel(self, error: BaseException) -> None:
        """Cancel the save in flight because of `error`, and return when nothing reads the state."""
        if self._last is not None:
            self._last.cancel(error)

    def _finish_last(self) -> BaseException | None:
        """Wait for the last save and forget it. Return its error if nobody was told."""
        if self._last is None:
            return None
        # It is forgotten after that, so that an interrupt in here leaves it in flight.
        self._last.join()
        last = self._last
        self._last = None
        if self._is_in_memory(last):
            self._turn += 1
        return last.unreported_error()

    def _raise_earlier(self, error: BaseException, save: Save) -> None:
        """Raise the error of the save before when the state may change again.

        The caller does not get the save that has started, and cannot wait for that itself.
        """
        try:
            save.staged()
        except BaseException as interrupt:
            save.cancel(interrupt)
            raise
        raise error

    def _fail_on_all_ranks(self, commit: Commit) -> None:
        """Let a save fail on all ranks, because this one cannot start it."""
        if self._ranks.world == 1:
            return
        try:
            # The caller raises the error that keeps this rank from saving.
            with suppress(Exception):
                commit.begin()
        finally:
            commit.abandon()

    @property
    def _tag(self) -> str:
        """The name of the present save. It is the same on every rank, and no other save has it."""
        return f"{self._ranks.session}-{self._save_count}"

    def _is_in_memory(self, save: Save) -> bool:
        """Return whether memory holds a save that has ended.

        Several ranks decide by what all of them know. Otherwise they would go on with different
        arenas.
        """
        return save.is_durable or (save.is_whole and self._ranks.world == 1)

    def _arena_in(self, folder: Path) -> SharedArena | None:
        """Return the arena whose files are in a folder, if there is one."""
        shared = [arena for arena in self._arenas if isinstance(arena, SharedArena)]
        return next((arena for arena in shared if arena.folder == folder), None)

    def _fitted(self, arena: Arena, plan: Layout) -> memoryview:
        """Return the arena's memory in the size that a save needs."""
        if self._ring_bytes is None:
            return arena.fit(plan.file, plan.file_bytes)
        # The ring must hold the whole header, which is written last.
        ring_bytes = max(plan.data_start, min(plan.file_bytes, self._ring_bytes))
        return arena.fit(plan.file, ring_bytes)

    def _new_save(
        self,
        sources: Mapping[str, Source],
        path: Path,
        step: int,
        earlier_error: BaseException | None,
    ) -> Save:
        """Return a save that has not started. If there can be none, let it fail on all ranks."""
        plan = self._layout
        assert plan is not None  # `prepare` comes first
        arena = self._arenas[self._turn % len(self._arenas)]
        commit = self._new_commit(path)
        try:
            snapshot = self._new_snapshot(plan, arena, sources)
        except Exception as error:
            self._fail_on_all_ranks(commit)
            raise error from earlier_error
        on_whole = partial(arena.note, plan.file, Origin(self._tag, self.home))
        return Save(snapshot, commit, self._io, step, on_whole)

    def _new_snapshot(self, plan: Layout, arena: Arena, sources: Mapping[str, Source]) -> Snapshot:
        share = {name: sources[name] for name in plan.names}
        kind = Snapshot if self._ring_bytes is None else RingSnapshot
        return kind(plan, self._fitted(arena, plan), share, self._device)

    def _new_commit(self, path: Path) -> Commit:
        ranks = self._ranks
        if ranks.world == 1:
            return Commit(path, self._tag)
        return CommonCommit(
            path, self._tag, ranks.rank, ranks.world, self._sealed_index, ranks.processes
        )

    def _sealed_index(self, seals: Mapping[str, str]) -> bytes:
        assert self._index is not None  # only rank 0 is asked for it
        return self._index.sealed(seals)
