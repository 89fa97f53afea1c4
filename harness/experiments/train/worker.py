"""How much slower training gets by its checkpoints: blocks of steps with some, each between two blocks of as many without."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.base import Method, Pending
from harness.experiments.train.records import TrainingRecord
from harness.wire.case import Task
from harness.worker import storage, usage
from harness.worker.bench import (
    CEILING_AGE_LIMIT_NS,
    DISTURBED_ABOVE,
    Bench,
    Entries,
    measure_copies,
    no_collection,
    state_record,
)
from harness.worker.clock import now_ns
from harness.worker.loading import run_loads
from harness.worker.sampling import STEPS_BEFORE_SAVING, interleave
from harness.worker.saving import keep_checkpoint, timed_sync
from harness.worker.trial import Trial

CHECKPOINTS = 2  # in a block


@dataclass(frozen=True)
class PlainBlock:
    """Steps without a checkpoint, each in nanoseconds, and when the last one ended."""

    step_ns: tuple[int, ...]
    ended_ns: int

    @property
    def total_ns(self) -> int:
        """The whole block."""
        return sum(self.step_ns)


class Pace:
    """Blocks without checkpoints that alternate with those that have some, P C P C P."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._last: PlainBlock | None = None

    def before(self, steps: int) -> PlainBlock:
        """Return the block in front of a sample: the one behind the last sample where that is fresh and as long."""
        last = self._last
        if last is not None and len(last.step_ns) == steps and self._is_fresh(last):
            return last
        return self.after(steps)

    def after(self, steps: int) -> PlainBlock:
        """Train a block and return it."""
        bench = self._bench
        bench.output.enter("train")
        bench.forget_digests()
        bench.world.barrier()
        with no_collection():
            durations = tuple(timed_step(bench) for _ in range(steps))
        self._last = PlainBlock(durations, now_ns())
        return self._last

    def _is_fresh(self, block: PlainBlock) -> bool:
        """Agreed between the ranks: a step is a common one."""
        return self._bench.world.maximum(now_ns() - block.ended_ns) < CEILING_AGE_LIMIT_NS


@dataclass
class Waits:
    """What a block with checkpoints has waited for, in nanoseconds, checkpoint by checkpoint and step by step."""

    save_ns: list[int] = field(default_factory=list)
    staged_ns: list[int] = field(default_factory=list)
    finished_ns: list[int] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)


class TrainingTrial(Trial[Pace]):
    """Blocks of training with checkpoints by one method."""

    def __init__(self, bench: Bench, task: Task, size_bytes: int) -> None:
        super().__init__(bench, task, size_bytes)
        self.method = bench.method(self.case)

    def sample(self, fence: Pace) -> None:
        """Train one block, between two without checkpoints."""
        bench, every = self.bench, self.case.every
        warmup = self._warmups_left > 0
        bench.output.enter("prepare")
        paths = [bench.fresh(bench.folders.trial / str(number)) for number in range(CHECKPOINTS)]
        bench.settle(self.size_bytes)
        before = fence.before(CHECKPOINTS * every)
        bench.world.barrier()
        start, started_at_s = usage.begin(), time.time()
        with no_collection():
            block_ns, waits = train_block(bench, self.method, paths, every)
        used = usage.since(start)
        sync_ns = timed_sync(bench, bench.folders.trial)
        after = fence.after(CHECKPOINTS * every)
        bench.raise_thread_errors()
        disturbed = _differ(before.total_ns, after.total_ns)
        bench.write_sample(
            TrainingRecord(
                kind="training",
                case=self.case.id,
                process=bench.job.process,
                rank=bench.world.rank,
                index=self._index,
                warmup=warmup,
                disturbed=disturbed,
                every=every,
                checkpoints=CHECKPOINTS,
                plain_before_ns=before.total_ns,
                plain_after_ns=after.total_ns,
                block_ns=block_ns,
                save_ns=tuple(waits.save_ns),
                staged_ns=tuple(waits.staged_ns),
                finished_ns=tuple(waits.finished_ns),
                step_ns=tuple(waits.step_ns),
                plain_step_ns=before.step_ns + after.step_ns,
                sync_ns=sync_ns,
                covered_bytes=self.size_bytes,
                file_bytes=sum(file.bytes for file in storage.inventory(paths[-1])),
                usage=used,
                started_at_s=started_at_s,
            )
        )
        self.count(warmup, bool(bench.world.maximum(int(disturbed))))
        bench.clear(bench.folders.trial)

    def keep(self) -> None:
        """Leave a checkpoint for the process that verifies it."""
        keep_checkpoint(self.bench, self.case, self.method)


def train_block(
    bench: Bench, method: Method[Any], paths: list[Path], every: int
) -> tuple[int, Waits]:
    """Train `every` steps behind each of the checkpoints; returns the nanoseconds of it all, and what they went to."""
    waits = Waits()
    bench.forget_digests()
    begin = now_ns()
    for path in paths:
        bench.output.enter("save")
        saving = now_ns()
        pending = method.save(bench.state, path)
        waits.save_ns.append(now_ns() - saving)
        _step_over(bench, pending, waits)
        bench.output.enter("train")
        waits.step_ns.extend(timed_step(bench) for _ in range(every - 1))
        bench.output.enter("finished")
        finishing = now_ns()
        pending.finished()
        waits.finished_ns.append(now_ns() - finishing)
    return now_ns() - begin, waits


def timed_step(bench: Bench) -> int:
    """Take one step of training; returns nanoseconds."""
    begin = now_ns()
    bench.framework.gradients(bench.state)
    bench.framework.update(bench.state)
    bench.framework.synchronize(bench.state)
    return now_ns() - begin


def _step_over(bench: Bench, pending: Pending, waits: Waits) -> None:
    """Take the step behind which a save may still be copying."""
    begin = now_ns()
    bench.framework.gradients(bench.state)
    bench.output.enter("staged")
    staging = now_ns()
    pending.staged()
    staged = now_ns()
    bench.framework.update(bench.state)
    bench.framework.synchronize(bench.state)
    waits.staged_ns.append(staged - staging)
    waits.step_ns.append(now_ns() - begin - waits.staged_ns[-1])


def _differ(first_ns: int, second_ns: int) -> bool:
    return abs(first_ns - second_ns) > DISTURBED_ABOVE * 0.5 * (first_ns + second_ns)


def run_steps(bench: Bench, entries: Entries) -> None:
    """Take every task's blocks of training in turn, then leave one checkpoint of each."""
    bench.output.enter("train")
    bench.train(STEPS_BEFORE_SAVING)
    copies_ns = measure_copies(bench)

    def make(task: Task) -> TrainingTrial:
        record = state_record(bench, task.case, copies_ns)
        bench.write_alike(record)
        return TrainingTrial(bench, task, record.covered_bytes)

    trials = interleave(bench, bench.attempt(entries, make), Pace(bench))
    bench.attempt(trials, TrainingTrial.keep)


STAGES = {"steps": run_steps, "load": run_loads}
