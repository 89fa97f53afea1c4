"""Training with checkpoints: blocks of steps with some, each between two blocks without any."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.base import Method, Pending
from harness.experiments.train.records import TrainingRecord
from harness.wire.case import Task
from harness.worker import ranks, storage
from harness.worker.bench import Bench, Entries
from harness.worker.clock import now_ns
from harness.worker.fence import AGE_LIMIT_NS, DISTURBED_ABOVE
from harness.worker.guards import drawn_saves
from harness.worker.kept import Kept
from harness.worker.loading import run_loads
from harness.worker.sampling import STEPS_BEFORE_SAVING, interleave
from harness.worker.saving import Finished, check_timed, keep_checkpoint, timed_sync
from harness.worker.state import measure_copies, state_record
from harness.worker.timing import no_collection
from harness.worker.trial import Trial
from harness.worker.verify import Digests

CHECKPOINTS = 2  # in a block


def run_steps(bench: Bench, entries: Entries) -> None:
    """Take every task's blocks of training in turn, then leave one checkpoint of each."""
    with bench.phase("train"):
        bench.train(STEPS_BEFORE_SAVING)
        bench.add_fresh_bits()
        copies = measure_copies(bench)

    def prepare(task: Task) -> TrainingTrial:
        record = state_record(bench, task.case, copies)
        bench.write_common(record)
        return TrainingTrial(bench, task, record.covered_bytes)

    trials = interleave(bench, bench.attempt(entries, prepare), Pace(bench))
    bench.attempt(trials, TrainingTrial.keep)


@dataclass(frozen=True)
class PlainBlock:
    """A block of steps without a checkpoint, and when its last step ended."""

    step_ns: tuple[int, ...]
    ended_ns: int

    @property
    def total_ns(self) -> int:
        """Return the duration of the block."""
        return sum(self.step_ns)


class Pace:
    """Blocks without checkpoints that alternate with those that have some: P C P C P."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._last: PlainBlock | None = None

    def before(self, steps: int) -> PlainBlock:
        """Return the block before a sample.

        The block after the last sample serves, if it is recent and has as many steps.
        """
        last = self._last
        if last is not None and len(last.step_ns) == steps and self._is_recent(last):
            return last
        return self.after(steps)

    def after(self, steps: int) -> PlainBlock:
        """Train a block and return it."""
        bench = self._bench
        with bench.phase("train"):
            bench.forget_digests()
            bench.world.barrier()
            with no_collection():
                step_ns = tuple(timed_step(bench) for _ in range(steps))
            self._last = PlainBlock(step_ns, ended_ns=now_ns())
        return self._last

    def _is_recent(self, block: PlainBlock) -> bool:
        """Return whether a block is recent. All ranks agree, because they train together."""
        return self._bench.world.maximum(now_ns() - block.ended_ns) < AGE_LIMIT_NS


@dataclass
class Waits:
    """The parts of a block with checkpoints: one value a checkpoint, and one a step."""

    save_ns: list[int] = field(default_factory=list)
    staged_ns: list[int] = field(default_factory=list)
    finished_ns: list[int] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)


class TrainingTrial(Trial[Pace]):
    """Blocks of training with checkpoints by one method."""

    def __init__(self, bench: Bench, task: Task, size_bytes: int) -> None:
        super().__init__(bench, task, size_bytes)
        self._task = task
        draws = bench.guards(drawn_saves.NAME)
        self._reservoir = drawn_saves.Reservoir(task.checked_saves if draws else 0, bench.world)
        self.method = bench.open_method(self.case)

    def sample(self, fence: Pace) -> None:
        """Train one block with checkpoints, between two blocks without."""
        bench = self.bench
        every = self.case.every
        steps = CHECKPOINTS * every
        waits = Waits()
        with bench.phase("prepare"):
            paths = [bench.checkpoints.fresh() for _ in range(CHECKPOINTS)]
            bench.settle(self.size_bytes)
            bench.add_fresh_bits()
            before = fence.before(steps)
            # The preparation has emptied the processor's caches. The first step after it would be
            # slower than those of the blocks without checkpoints, which have no preparation.
            bench.train()
            bench.forget_digests()
            candidate = Candidate(bench, paths if self._reservoir.capacity else ())
        with bench.timed("train") as block:
            block_ns = train_block(bench, self.method, paths, every, waits, candidate)
        sync_ns = timed_sync(bench, paths)
        files = [storage.inventory(path) for path in paths]
        saved = [Finished.now(bench, path) for path in paths]
        after = fence.after(steps)
        with bench.phase("finished"):
            for finished, entries in zip(saved, files, strict=True):
                check_timed(bench, self._task, finished, entries)
        record = TrainingRecord(
            kind="training",
            **self.sample_fields(block, _differ(before.total_ns, after.total_ns)),
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
            file_bytes=storage.total_bytes(files[-1]),
        )
        self.report(record, sum_up_blocks)
        for finished in saved:
            if finished.path == candidate.path:
                kept = Kept(candidate.path, candidate.digests, finished.pages)
                bench.checkpoints.draw(self._reservoir, kept)
            else:
                bench.checkpoints.discard(finished.path)

    def keep(self) -> None:
        """Leave the drawn checkpoints, and one more, for the process that verifies them."""
        keep_checkpoint(self.bench, self.case, self.method, self._reservoir.drawn)


class Candidate:
    """The checkpoint of a block that may be loaded. All ranks choose the same, and no method knows.

    Its state must be known, and for that the training stops just before its save.
    """

    path: Path | None = None
    digests: Digests

    def __init__(self, bench: Bench, paths: Sequence[Path]) -> None:
        """Choose one of these paths. There are none where no checkpoint of a block is loaded."""
        if paths:
            self.path = paths[bench.world.agreed(secrets.randbelow(len(paths)))]
        self._bench = bench

    def look(self, path: Path) -> int:
        """Take the digests of the state if it goes to this path. Return the nanoseconds."""
        if path != self.path:
            return 0
        bench = self._bench
        begin = now_ns()
        with bench.phase("verify"):
            bench.forget_digests()
            self.digests = bench.digests()
            bench.forget_digests()
            bench.world.barrier()
        return now_ns() - begin


def train_block(
    bench: Bench,
    method: Method[Any],
    paths: Sequence[Path],
    every: int,
    waits: Waits,
    candidate: Candidate,
) -> int:
    """Save to each path, and train `every` steps after each save.

    Return the nanoseconds, without those of the look at the candidate's state.
    """
    looked_ns = 0
    block_begin = now_ns()
    for path in paths:
        looked_ns += candidate.look(path)
        bench.output.enter("save")
        begin = now_ns()
        pending = method.save(bench.state, path)
        waits.save_ns.append(now_ns() - begin)
        _step_while_staging(bench, pending, waits)
        bench.output.enter("train")
        waits.step_ns.extend(timed_step(bench) for _ in range(every - 1))
        bench.output.enter("finished")
        begin = now_ns()
        pending.finished()
        waits.finished_ns.append(now_ns() - begin)
    return now_ns() - block_begin - looked_ns


def timed_step(bench: Bench) -> int:
    """Take one training step, and return its nanoseconds."""
    begin = now_ns()
    bench.framework.gradients(bench.state)
    bench.framework.update(bench.state)
    bench.framework.synchronize(bench.state)
    return now_ns() - begin


def _step_while_staging(bench: Bench, pending: Pending, waits: Waits) -> None:
    """Take the step during which a save may still be copying. Its wait for the copy is no step."""
    begin = now_ns()
    bench.framework.gradients(bench.state)
    bench.output.enter("staged")
    staging = now_ns()
    pending.staged()
    staged = now_ns()
    bench.framework.update(bench.state)
    bench.framework.synchronize(bench.state)
    end = now_ns()
    waits.staged_ns.append(staged - staging)
    waits.step_ns.append(end - begin - (staged - staging))


def sum_up_blocks(records: Sequence[TrainingRecord]) -> TrainingRecord:
    """Return in the name of all the record of the rank whose training stood still longest.

    The other ranks wait for it in their steps, so their blocks are as long. Its flush is the
    longest, because only one rank of each node flushes.
    """
    return ranks.for_all_ranks(
        max(records, key=_stall_and_block_ns),
        records,
        durations_ns=[record.block_ns for record in records],
        moved_bytes=[record.usage.written_bytes for record in records],
        sync_ns=max(record.sync_ns for record in records),
    )


def _stall_and_block_ns(record: TrainingRecord) -> tuple[int, int]:
    return sum(record.save_ns) + sum(record.staged_ns), record.block_ns


def _differ(first_ns: int, second_ns: int) -> bool:
    mean_ns = 0.5 * (first_ns + second_ns)
    return abs(first_ns - second_ns) > DISTURBED_ABOVE * mean_ns


STAGES = {"steps": run_steps, "load": run_loads}
