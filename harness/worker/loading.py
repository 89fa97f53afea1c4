"""Loads of checkpoints that another process wrote: cold, timed, and verified leaf by leaf."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from adapters.base import Method
from harness.wire.case import Task
from harness.wire.records import CacheState, LoadRecord, VerifiedRecord
from harness.worker import storage, usage, verify
from harness.worker.bench import Bench, Entries, Fence, is_disturbed, no_collection, state_record
from harness.worker.checks import cache_state, check_from_memory, check_nothing_mapped
from harness.worker.clock import now_ns
from harness.worker.sampling import interleave
from harness.worker.trial import Trial


def run_loads(bench: Bench, entries: Entries) -> None:
    """Take every task's loads in turn."""

    def make(task: Task) -> LoadTrial:
        size_bytes = state_record(bench, task.case, (0, 0)).covered_bytes
        return LoadTrial(bench, task, size_bytes)

    # A bad load may have put mappings or other types into the state that the next ones share.
    repair = bench.rebuild_target
    trials = bench.attempt(entries, make, repair)
    interleave(bench, trials, Fence(bench, "read"), repair=repair)


class LoadTrial(Trial[Fence]):
    """Loads of a checkpoint that another process wrote, each on a new method into a state that differs in every leaf."""

    def __init__(self, bench: Bench, task: Task, size_bytes: int) -> None:
        super().__init__(bench, task, size_bytes)
        self.path = bench.folders.kept(self.case) / "checkpoint"
        self.saved = verify.read_digests(bench.folders.digests(self.case, bench.world.rank))
        self._verified = False

    def sample(self, fence: Fence) -> None:
        """Take one sample, between two ceilings, and verify what it restored."""
        bench = self.bench
        warmup = self._warmups_left > 0
        bench.output.enter("verify")
        self._make_target()
        method = bench.method(self.case)
        bench.output.enter("prepare")
        before_ns = fence.before(self.size_bytes)
        quiet, backing = bench.settle(self.size_bytes)
        storage.drop_from_cache(self.path)
        bench.world.barrier()
        resident = storage.resident_fraction(self.path)
        start, started_at_s = usage.begin(), time.time()
        with no_collection():
            load_ns = timed_load(bench, method, self.path)
        used = usage.since(start)
        bench.output.enter("verify")
        check_nothing_mapped(self.path)
        bench.output.enter("ceiling")
        ceilings = fence.after(self.size_bytes, before_ns)
        bench.output.enter("verify")
        bench.raise_thread_errors()
        loaded = bench.digests()
        self._check(loaded)
        files = storage.inventory(self.path)
        file_bytes = sum(file.bytes for file in files)
        read_bytes = bench.world.total(used.read_bytes)
        counted = bench.ceiling.storage.counts_device_reads
        cache: CacheState = (
            "memory"
            if self.case.from_memory
            else cache_state(resident, read_bytes, file_bytes, counted)
        )
        if self.case.from_memory:
            check_from_memory(read_bytes, file_bytes, looks=len(files) * bench.world.size)
        bench.output.enter("close")
        method.close()
        self._write_verified(loaded)
        bench.write_sample(
            LoadRecord(
                kind="load",
                case=self.case.id,
                process=bench.job.process,
                rank=bench.world.rank,
                index=self._index,
                warmup=warmup,
                disturbed=is_disturbed(ceilings),
                load_ns=load_ns,
                ceilings=ceilings,
                covered_bytes=self.size_bytes,
                file_bytes=file_bytes,
                cache=cache,
                resident_fraction=resident,
                backing=backing,
                quiet=quiet,
                usage=used,
                started_at_s=started_at_s,
            )
        )
        self.count(warmup, is_disturbed(ceilings))

    def _check(self, loaded: verify.Digests) -> None:
        """Raise Mismatch unless the load restored what the method declares, on all ranks together."""
        scope = self.bench.scope(self.case)
        verify.check_restored(self.saved, loaded, scope)
        world = self.bench.world
        restored = {
            name: world.total(int(own))
            for name, own in verify.own_views(self.saved, loaded, scope).items()
        }
        lost = [name for name, ranks in restored.items() if ranks == 0]
        if lost:
            raise verify.Mismatch(f"no rank's own value came back of {verify.listed(lost)}")
        if restored and min(restored.values()) == world.size:
            raise verify.Mismatch(
                "the method declares one rank's view of rank-local leaves but restored every rank's own"
            )

    def _make_target(self) -> None:
        """Have a state that differs from the saved one in every leaf.

        As a rule it is there: the first target is built from another seed and has taken no step,
        and what the load before has restored was saved at another step. Else a step leads away from
        it. Where a leaf stands still, the state is built anew, from another seed and with another
        number of steps than the saved one. What no training moves is given another value.
        """
        for change in (self.bench.train, self.bench.rebuild_target, self._move_what_stands):
            if self._target_differs():
                return
            change()
        verify.check_all_differ(self.saved, self.bench.digests())

    def _target_differs(self) -> bool:
        """Whether it does on every rank: all ranks change it together, for a step is a common one."""
        try:
            verify.check_all_differ(self.saved, self.bench.digests())
        except verify.Mismatch:
            differs = False
        else:
            differs = True
        return not self.bench.world.maximum(int(not differs))

    def _move_what_stands(self) -> None:
        """Assign other bytes to the leaves that have the saved value."""
        self.bench.move(verify.standing(self.saved, self.bench.digests()))

    def _write_verified(self, loaded: verify.Digests) -> None:
        if self._verified:
            return
        scope = self.bench.scope(self.case)
        covered = sum(scope.covered(digest) for digest in loaded.values())
        self.bench.write_alike(
            VerifiedRecord(
                kind="verified",
                case=self.case.id,
                process=self.bench.job.process,
                rank=self.bench.world.rank,
                covered_leaves=covered,
                uncovered_leaves=len(loaded) - covered,
            )
        )
        self._verified = True


def timed_load(bench: Bench, method: Method[Any], path: Path) -> int:
    """Load until the device has everything; returns nanoseconds."""
    bench.output.enter("load")
    bench.forget_digests()
    begin = now_ns()
    method.load(bench.state, path)
    bench.framework.synchronize(bench.state)
    return now_ns() - begin
