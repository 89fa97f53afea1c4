"""Loads of checkpoints that another process wrote: cold, timed, and verified leaf by leaf."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapters.base import Coverage, Method
from harness.wire.case import Task
from harness.wire.records import CacheState, FileEntry, LoadRecord, VerifiedRecord
from harness.worker import ranks, storage, verify
from harness.worker.bench import Bench, Conditions, Entries
from harness.worker.clock import now_ns
from harness.worker.fence import Fence, is_disturbed
from harness.worker.guards import (
    cold_reads,
    from_memory,
    late_values,
    lost_settings,
    rank_views,
    without_memory,
)
from harness.worker.guards.unchanged_state import Sums
from harness.worker.kept import Kept
from harness.worker.sampling import interleave
from harness.worker.saving import Opened, timed_open
from harness.worker.state import state_record
from harness.worker.timing import Timed
from harness.worker.trial import Trial
from workloads import Role

_LEAST_COLD_LAST: tuple[CacheState, ...] = ("cold", "memory", "uncounted", "unknown", "warm")


def run_loads(bench: Bench, entries: Entries) -> None:
    """Take every task's loads in turn."""

    def prepare(task: Task) -> LoadTrial:
        return LoadTrial(bench, task, state_record(bench, task.case).covered_bytes)

    # A bad load may leave mappings or other types in the state, which the next cases share.
    repair = bench.rebuild_target
    trials = bench.attempt(entries, prepare, repair)
    interleave(bench, trials, Fence(bench, "read"), repair=repair)


class LoadTrial(Trial[Fence]):
    """Loads of a checkpoint that another process wrote.

    Each load is by a new method, into a state that differs from the saved one in every leaf.
    """

    def __init__(self, bench: Bench, task: Task, size_bytes: int) -> None:
        super().__init__(bench, task, size_bytes)
        checkpoints = bench.kept(self.case, bench.world.rank)
        # Shared memory holds only the last one.
        in_turn = checkpoints[-1:] if self.case.from_memory else checkpoints
        self._turns = itertools.cycle(in_turn)
        self._in_files = list(checkpoints)
        self._unverified = list(in_turn)
        self._has_one_writer = task.one_writer
        self._has_files = task.files
        # Of each load, over all ranks.
        self._device_bytes: list[int] = []

    def sample(self, fence: Fence) -> None:
        """Take one cold load of the next checkpoint between two ceilings, and verify it.

        The last sample also loads what no sample had a turn for. So a run that is interrupted takes
        at least one sample anew if that is missing.
        """
        bench = self.bench
        self._take(next(self._turns))
        opened = self._opened_on_another_state()
        ceiling_before_ns, conditions, resident = self._prepare(fence)
        settings = self._changed_settings()
        with bench.timed("load") as load:
            load_ns = timed_load(bench, opened.method, self.path)
        lost = settings.lost() if settings else ""
        if lost:
            bench.write_finding(self.case, lost_settings.NAME, "remark", lost)
        early = self._look_early()
        with bench.phase("ceiling"):
            ceilings = fence.after(self.size_bytes, ceiling_before_ns)
        files, cache = self._verify(early, load, resident)
        bench.close_method(opened.method)
        foreign_bytes = load.foreign_bytes()
        disturbed = is_disturbed(ceilings, conditions.quiet, foreign_bytes)
        if self.is_last(bench.world.any(disturbed)):
            self._check_read_directly(files)
            self.load_the_rest()
            self._report_verified()
        record = LoadRecord(
            kind="load",
            **self.sample_fields(load, disturbed),
            load_ns=load_ns,
            ceilings=ceilings,
            file_bytes=storage.total_bytes(files),
            cache=cache,
            resident_fraction=resident,
            backing=conditions.backing,
            quiet=conditions.quiet,
            foreign_bytes=foreign_bytes,
            loaded_in=bench.job.role,
            open_ns=opened.open_ns,
            open_read_bytes=opened.read_bytes,
        )
        self.report(record, sum_up_loads)

    def _opened_on_another_state(self) -> Opened:
        """Make the state another one than the saved one, and open a new method on it."""
        with self.bench.phase("verify"):
            self._make_target()
        return timed_open(self.bench, self.case)

    def _prepare(self, fence: Fence) -> tuple[int, Conditions, float]:
        """Measure the ceiling, settle the machine, and drop the files from the page cache.

        Return the ceiling's nanoseconds, the conditions, and the share of pages still in memory.
        """
        bench = self.bench
        with bench.phase("prepare"):
            ceiling_before_ns = fence.before(self.size_bytes)
            conditions = bench.settle(self.size_bytes)
            resident = self._drop_from_cache()
        return ceiling_before_ns, conditions, resident

    def _drop_from_cache(self) -> float:
        """Have the kernel forget the files. Return the share of pages that are still in memory."""
        storage.drop_from_cache(self.path)
        # Ranks of one node share the page cache, so all must have dropped the files.
        self.bench.world.barrier()
        self.bench.forget_digests()
        return storage.resident_fraction(self.path)

    def _check_nothing_mapped(self) -> None:
        if self.bench.guards(cold_reads.NAME):
            cold_reads.check_nothing_mapped(self.path)

    def _changed_settings(self) -> lost_settings.Settings | None:
        """Change the settings of a user's optimizers; None where a load need not bring them back.

        The optimizers of this project's workloads have the settings of the workload.
        """
        bench = self.bench
        covers_optimizers = Coverage(self.case.covers) is not Coverage.WEIGHTS
        if self.case.model is None or not covers_optimizers:
            return None
        if not bench.guards(lost_settings.NAME):
            return None
        return lost_settings.Settings(bench.framework, bench.state)

    def _look_early(self) -> Sums:
        """Return sums of a few leaves just after the load. Raise NotRead if a file is mapped."""
        with self.bench.phase("verify"):
            early = late_values.sampled(self.bench.framework.leaves(self.bench.state), self.saved)
            # A mapping must be seen before the ceiling collects garbage, which may remove it.
            self._check_nothing_mapped()
        return early

    def _verify(
        self, early: Sums, load: Timed, resident: float
    ) -> tuple[Sequence[FileEntry], CacheState]:
        """Compare the state with the saved one.

        Return the files, and where the values came from.
        """
        bench = self.bench
        with bench.phase("verify"):
            bench.thread_errors.raise_first()
            bench.check_not_late(early)
            self._check_restored(bench.digests())
            files = storage.inventory(self.path)
            cache = self._cache_state(files, load, resident)
        if self._taken in self._unverified:
            self._unverified.remove(self._taken)
        return files, cache

    def load_the_rest(self) -> None:
        """Load and verify the checkpoints that no sample had a turn for, untimed.

        If the method restores from memory, its memory is removed, and then all are loaded.
        """
        bench = self.bench
        memory = bench.memory(self.case)
        out_of_files = self._has_files and not self.case.from_memory
        falls_back = self._has_files and self.case.from_memory
        if falls_back and memory and bench.guards(without_memory.NAME):
            without_memory.remove(memory, bench.world)
            self._unverified = list(self._in_files)
            out_of_files = True
        for kept in list(self._unverified):
            self._take(kept)
            self._load_untimed(out_of_files)
            self._unverified.remove(kept)

    def _load_untimed(self, out_of_files: bool) -> None:
        """Load and verify the checkpoint at hand.

        Raise NotRead where its values must come out of its files, and do not.
        """
        bench = self.bench
        with bench.phase("verify"):
            self._make_target()
            method = bench.open_method(self.case)
            resident = self._drop_from_cache()
        with bench.timed("load") as load:
            timed_load(bench, method, self.path)
        with bench.phase("verify"):
            self._check_nothing_mapped()
            bench.thread_errors.raise_first()
            self._check_restored(bench.digests())
            if out_of_files:
                read_bytes = bench.world.total(load.usage.read_bytes)
                self._cache_of_files(storage.inventory(self.path), read_bytes, resident)
        bench.close_method(method)

    def _take(self, kept: Kept) -> None:
        """Make a checkpoint the one that is loaded next."""
        self._taken = kept
        self.path = kept.path
        self.saved = kept.digests

    def _make_target(self) -> None:
        """Make the state differ from the saved one in every leaf.

        Most often it does already: the first target has another seed and has taken no step, and the
        load before restored another step. If not, a training step moves it on. Leaves that no
        training moves, such as the buffers of a model without a forward pass, are given other
        bytes. A random generator does not take any bytes, so a state whose generator stands still
        is built again, with another seed and another number of steps.
        """
        bench = self.bench
        changes = (
            bench.train,
            self._assign_equal_values,
            bench.rebuild_target,
            self._assign_equal_leaves,
        )
        for change in changes:
            if self._target_differs():
                return
            change()
        verify.check_all_differ(self.saved, bench.digests())

    def _target_differs(self) -> bool:
        """Return whether the state differs from the saved one on every rank.

        All ranks change the state together, because they take training steps together.
        """
        try:
            verify.check_all_differ(self.saved, self.bench.digests())
        except verify.Mismatch:
            differs = False
        else:
            differs = True
        return not self.bench.world.any(not differs)

    def _assign_equal_values(self) -> None:
        """Change the leaves that have the saved value, without random generators."""
        equal = verify.equal_leaves(self.saved, self.bench.digests())
        values = [name for name in equal if self.saved[name].role != Role.RNG]
        self.bench.assign_other_bytes(values)

    def _assign_equal_leaves(self) -> None:
        """Change the leaves that have the saved value."""
        self.bench.assign_other_bytes(verify.equal_leaves(self.saved, self.bench.digests()))

    def _check_restored(self, loaded: verify.Digests) -> None:
        """Raise Mismatch unless the load restored what the method declares, over all ranks."""
        scope = self.bench.scope(self.case)
        verify.check_restored(self.saved, loaded, scope)
        if self.bench.guards(rank_views.NAME):
            names = [name for name in self.saved if scope.one_view(self.saved[name])]
            world = self.bench.world
            saved_by_rank = world.all_gathered(verify.hashes(self.saved, names))
            loaded_by_rank = world.all_gathered(verify.hashes(loaded, names))
            rank_views.check_one_view(saved_by_rank, loaded_by_rank, self._has_one_writer)

    def _cache_state(self, files: Sequence[FileEntry], load: Timed, resident: float) -> CacheState:
        """Return where the values of a load came from.

        Raise NotRead or NotFromMemory where they came from elsewhere than the method declares.
        """
        file_bytes = storage.total_bytes(files)
        read_bytes = self.bench.world.total(load.usage.read_bytes)
        self._device_bytes.append(read_bytes)
        if not self._has_files:
            return "memory"
        if self.case.from_memory:
            # What the load has read of its files is in the page cache now.
            cached_share = storage.resident_fraction(self.path) - resident
            self._check_from_memory(round(cached_share * file_bytes), files)
            return "memory"
        return self._cache_of_files(files, read_bytes, resident)

    def _cache_of_files(
        self, files: Sequence[FileEntry], read_bytes: int, resident: float
    ) -> CacheState:
        """Return whether a load of files was cold. Raise NotRead where it did not read them."""
        if not self.bench.guards(cold_reads.NAME):
            return "unknown"
        counted = self.bench.ceiling.storage.counts_device_reads
        file_bytes = storage.total_bytes(files)
        return cold_reads.cache_state(resident, read_bytes, file_bytes, counted)

    def _check_read_directly(self, files: Sequence[FileEntry]) -> None:
        """Raise NotFromMemory if each load read its files without the page cache.

        One load proves nothing, because the kernel may have read libraries anew beside it.
        """
        if self.case.from_memory and self._has_files:
            with self.bench.phase("verify"):
                self._check_from_memory(min(self._device_bytes), files)

    def _check_from_memory(self, read_bytes: int, files: Sequence[FileEntry]) -> None:
        if not self.bench.guards(from_memory.NAME):
            return
        looks = len(files) * self.bench.world.size
        from_memory.check_from_memory(read_bytes, storage.total_bytes(files), looks)

    def _report_verified(self) -> None:
        """Write how many leaves a verified load restored."""
        scope = self.bench.scope(self.case)
        loaded = self.bench.digests()
        covered = sum(scope.covered(digest) for digest in loaded.values())
        record = VerifiedRecord(
            kind="verified",
            **self.bench.identity(self.case),
            covered_leaves=covered,
            uncovered_leaves=len(loaded) - covered,
        )
        self.bench.write_common(record)


def timed_load(bench: Bench, method: Method[Any], path: Path) -> int:
    """Load, and return the nanoseconds until the device had everything."""
    begin = now_ns()
    method.load(bench.state, path)
    bench.framework.synchronize(bench.state)
    return now_ns() - begin


def sum_up_loads(records: Sequence[LoadRecord]) -> LoadRecord:
    """Return the record of the slowest rank in the name of all.

    It was cold only where every rank's load was.
    """
    durations_ns = [record.load_ns for record in records]
    least_cold = max(records, key=lambda record: _LEAST_COLD_LAST.index(record.cache))
    return ranks.for_all_ranks(
        ranks.slowest(records, durations_ns),
        records,
        durations_ns=durations_ns,
        moved_bytes=[record.usage.read_bytes for record in records],
        cache=least_cold.cache,
        resident_fraction=max(record.resident_fraction for record in records),
    )
