"""Timed saves of every method in turn, and the checkpoints that another process loads."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from adapters.base import Method, Pending
from harness.experiments.cost.records import OpenedRecord, SaveRecord
from harness.wire.case import Task
from harness.wire.records import OverheadRecord
from harness.worker import storage, usage, verify
from harness.worker.bench import (
    Bench,
    Entries,
    Fence,
    bytes_here,
    is_disturbed,
    measure_copies,
    no_collection,
    state_record,
)
from harness.worker.checks import check_finished
from harness.worker.loading import run_loads
from harness.worker.sampling import STEPS_BEFORE_SAVING, interleave
from harness.worker.saving import keep_checkpoint, timed_open, timed_save
from harness.worker.trial import Trial

_EMPTY_SAVES = 20


def run_saves(bench: Bench, entries: Entries) -> None:
    """Take every task's saves in turn, then leave one checkpoint of each for the loading process."""
    bench.output.enter("train")
    bench.train(STEPS_BEFORE_SAVING)
    bench.output.enter("overhead")
    bench.write_alike(measure_overhead(bench))
    copies_ns = measure_copies(bench)
    copied_bytes = bytes_here(bench)

    def make(task: Task) -> SaveTrial:
        record = state_record(bench, task.case, copies_ns)
        bench.write_alike(record)
        return SaveTrial(bench, task, record.covered_bytes, copied_bytes)

    trials = bench.attempt(entries, make)
    trials = interleave(bench, trials, Fence(bench, "write"), trains_between_rounds=True)
    bench.attempt(trials, SaveTrial.keep)


class EmptyMethod(Method[Any]):
    """Saves nothing: what remains in its timings is the harness."""

    def save(self, state: Any, path: Path) -> Pending:
        return Pending()

    def load(self, state: Any, path: Path) -> None:
        return None


class SaveTrial(Trial[Fence]):
    """Saves of one case, and at the end the checkpoint that the loading process will read."""

    def __init__(
        self,
        bench: Bench,
        task: Task,
        size_bytes: int,
        copied_bytes: int,
    ) -> None:
        """`copied_bytes` are those of this rank's state, which its stall is held against a copy of."""
        super().__init__(bench, task, size_bytes)
        self.method, open_ns = timed_open(bench, self.case, size_bytes)
        bench.write_alike(
            OpenedRecord("opened", self.case.id, bench.job.process, bench.world.rank, open_ns)
        )
        self.copied_bytes = copied_bytes

    def sample(self, fence: Fence) -> None:
        bench = self.bench
        warmup = self._warmups_left > 0
        bench.output.enter("prepare")
        path = bench.fresh(bench.folders.trial)
        before_ns = fence.before(self.size_bytes)
        quiet, backing = bench.settle(self.size_bytes)
        copy_before_ns = bench.ceiling.copy_ns(self.copied_bytes)
        bench.world.barrier()
        start, started_at_s = usage.begin(), time.time()
        with no_collection():
            phases = timed_save(bench, self.method, path)
        used = usage.since(start)
        bench.output.enter("ceiling")
        files, written = storage.inventory(path), storage.fingerprint(path)
        copy_after_ns = bench.ceiling.copy_ns(self.copied_bytes)
        ceilings = fence.after(self.size_bytes, before_ns)
        bench.raise_thread_errors()
        check_finished(path, written)
        bench.write_sample(
            SaveRecord(
                kind="save",
                case=self.case.id,
                process=bench.job.process,
                rank=bench.world.rank,
                index=self._index,
                warmup=warmup,
                disturbed=is_disturbed(ceilings),
                save_ns=phases.save_ns,
                staged_ns=phases.staged_ns,
                finished_ns=phases.finished_ns,
                sync_ns=phases.sync_ns,
                ceilings=ceilings,
                covered_bytes=self.size_bytes,
                file_bytes=sum(file.bytes for file in files),
                files=files,
                backing=backing,
                quiet=quiet,
                usage=used,
                started_at_s=started_at_s,
                memory_copy_ns=(copy_before_ns + copy_after_ns) // 2,
            )
        )
        self.count(warmup, is_disturbed(ceilings))
        bench.clear(bench.folders.trial)

    def keep(self) -> None:
        """Leave a checkpoint for the loading process."""
        keep_checkpoint(self.bench, self.case, self.method)


def measure_overhead(bench: Bench) -> OverheadRecord:
    """What an empty method costs, and the memory that the ceilings' rings and the digests take beside the state."""
    begin = usage.begin()
    method = EmptyMethod(bench.place, bench.framework, {})
    path = bench.fresh(bench.folders.trial)
    costs_ns = []
    for _ in range(_EMPTY_SAVES):
        phases = timed_save(bench, method, path)
        costs_ns.append(phases.save_ns + phases.staged_ns + phases.finished_ns)
    bench.ceiling.write_ns(1 << 20)
    bench.ceiling.copy_ns(1 << 20)
    verify.digests(bench.framework.leaves(bench.state))
    return OverheadRecord(
        kind="overhead",
        job=bench.job.name,
        process=bench.job.process,
        rank=bench.world.rank,
        empty_save_ns=tuple(costs_ns),
        harness_peak_bytes=bench.ceiling.peak_bytes + usage.since(begin).peak_rss_bytes,
    )


STAGES = {"save": run_saves, "load": run_loads}
