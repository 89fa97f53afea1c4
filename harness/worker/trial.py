"""The measured sequences.

A trial is one case in one process; its methods read top to bottom as what happens.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from adapters.base import Method, Pending
from harness.experiments.cost.records import OpenedRecord, SaveRecord
from harness.wire.case import Case, Task
from harness.wire.marks import Instant, mark
from harness.wire.records import CacheState, KeptRecord, LoadRecord, VerifiedRecord
from harness.worker import storage, usage, verify
from harness.worker.bench import Bench, Fence, is_disturbed, no_collection
from harness.worker.clock import now_ns

FenceT = TypeVar("FenceT")

_LATE_WORK_WAIT_S = 0.1
_RESIDENT_AT_MOST = 0.001
_READ_AT_LEAST = 0.99
_READAHEAD_BYTES = 128 << 10  # Linux's default: a look at a header may read so much


class LateWork(Exception):
    """Something still worked on the checkpoint after `finished` had returned."""


class StrayFiles(Exception):
    """A method left files beside the path it was given."""


class NotRead(Exception):
    """A load gave the right values without reading its files."""


class NotFromMemory(Exception):
    """A load that declares to restore from memory read the files."""


@dataclass(frozen=True)
class Phases:
    """How long a save blocked in each phase, in nanoseconds."""

    save_ns: int
    staged_ns: int
    finished_ns: int
    sync_ns: int


class EmptyMethod(Method[Any]):
    """Saves nothing: what remains in its timings is the harness."""

    def save(self, state: Any, path: Path) -> Pending:
        return Pending()

    def load(self, state: Any, path: Path) -> None:
        return None


class Trial(ABC, Generic[FenceT]):
    """One case in this process, and how many samples of it are still wanted."""

    def __init__(
        self, bench: Bench, task: Task, method_class: type[Method[Any]], size_bytes: int
    ) -> None:
        self.bench = bench
        self.case: Case = task.case
        self.method_class = method_class
        self.size_bytes = size_bytes
        self._warmups_left = task.warmups
        self._samples_left = task.samples
        self._repeats_left = task.repeats
        self._index = task.first_index

    @property
    def wants_more(self) -> bool:
        """Whether another sample is due."""
        return self._samples_left > 0

    @abstractmethod
    def sample(self, fence: FenceT) -> None:
        """Take one sample, between two of what it is held against."""

    def count(self, warmup: bool, disturbed: bool) -> None:
        """Book a sample: a disturbed one is taken again while repeats are left."""
        self._index += 1
        if warmup:
            self._warmups_left -= 1
        elif disturbed and self._repeats_left > 0:
            self._repeats_left -= 1
        else:
            self._samples_left -= 1


class SaveTrial(Trial[Fence]):
    """Saves of one case, and at the end the checkpoint that the loading process will read."""

    def __init__(
        self,
        bench: Bench,
        task: Task,
        method_class: type[Method[Any]],
        size_bytes: int,
        copied_bytes: int,
    ) -> None:
        """`copied_bytes` are those of this rank's state, which its stall is held against a copy of."""
        super().__init__(bench, task, method_class, size_bytes)
        self.method, open_ns = timed_open(bench, self.case, method_class, size_bytes)
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


class LoadTrial(Trial[Fence]):
    """Loads of a checkpoint that another process wrote, each on a new method into a state that differs in every leaf."""

    def __init__(
        self, bench: Bench, task: Task, method_class: type[Method[Any]], size_bytes: int
    ) -> None:
        super().__init__(bench, task, method_class, size_bytes)
        self.path = bench.folders.kept(self.case) / "checkpoint"
        self.saved = verify.read_digests(bench.folders.digests(self.case, bench.world.rank))
        self._verified = False

    def sample(self, fence: Fence) -> None:
        """Take one sample, between two ceilings, and verify what it restored."""
        bench = self.bench
        warmup = self._warmups_left > 0
        bench.output.enter("verify")
        self._make_target()
        method = bench.method(self.case, self.method_class)
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


def keep_checkpoint(bench: Bench, case: Case, method: Method[Any]) -> None:
    """Save across a training step, untimed, and keep the checkpoint with what it must restore; the method is closed with it.

    Forward and backward run before `staged`, the optimizer's step before `finished`: a method that
    aliases the live state, or copies batch-norm statistics too late, writes something else than the
    saved step.
    """
    bench.output.enter("prepare")
    # two steps between kept checkpoints: one step after loading one of them is then no other's
    bench.train()
    saved = bench.digests()
    save_for_another(bench, case, method)
    expected = bench.folders.digests(case, bench.world.rank)
    expected.parent.mkdir(exist_ok=True)
    verify.write_digests(expected, saved)
    bench.write_alike(KeptRecord("kept", case.id, bench.job.process, bench.world.rank, len(saved)))


def save_for_another(bench: Bench, case: Case, method: Method[Any]) -> None:
    """Save behind a training step where another job will look for it, and close the method; raises where it works on afterwards."""
    path = bench.fresh(bench.folders.kept(case))
    pending = overlapped_save(bench, method, path)
    bench.world.barrier()
    check_nothing_open(path)
    written = storage.fingerprint(path)
    time.sleep(_LATE_WORK_WAIT_S)
    bench.output.enter("close")
    method.close()
    bench.world.barrier()
    bench.output.enter("finished")
    del pending
    bench.raise_thread_errors()
    check_finished(path, written)


def timed_save(bench: Bench, method: Method[Any], path: Path) -> Phases:
    """Save and make durable, with the clock running in each phase and nothing else in it."""
    output = bench.output
    output.enter("save")
    begin = now_ns()
    pending = method.save(bench.state, path)
    returned = now_ns()
    output.enter("staged")
    staging = now_ns()
    pending.staged()
    staged = now_ns()
    output.enter("finished")
    finishing = now_ns()
    pending.finished()
    finished = now_ns()
    output.enter("sync")
    return Phases(returned - begin, staged - staging, finished - finishing, timed_sync(bench, path))


def timed_sync(bench: Bench, path: Path) -> int:
    """Make the checkpoint durable, whatever the method did itself: one rank a node, once all ranks have finished."""
    bench.world.barrier()
    begin = now_ns()
    if bench.world.local_rank == 0:
        storage.sync_tree(path)
        duration_ns = now_ns() - begin
    else:
        duration_ns = 0
    bench.world.barrier()
    return duration_ns


def timed_open(
    bench: Bench, case: Case, method_class: type[Method[Any]], size_bytes: int
) -> tuple[Method[Any], int]:
    """Make a method and open it on the state; returns it and nanoseconds until the last rank's device has done with that."""
    bench.settle(size_bytes)
    bench.world.barrier()
    begin = now_ns()
    with no_collection():
        method = bench.method(case, method_class)
        bench.framework.synchronize(bench.state)
    open_ns = now_ns() - begin
    bench.output.enter("prepare")  # who waits for the other ranks does not hang in `open`
    return method, bench.world.maximum(open_ns)


def timed_load(bench: Bench, method: Method[Any], path: Path) -> int:
    """Load until the device has everything; returns nanoseconds."""
    bench.output.enter("load")
    bench.forget_digests()
    begin = now_ns()
    method.load(bench.state, path)
    bench.framework.synchronize(bench.state)
    return now_ns() - begin


def overlapped_save(bench: Bench, method: Method[Any], path: Path) -> Pending:
    """Save with a training step in the gaps that the contract leaves for it, untimed."""
    output, framework, state = bench.output, bench.framework, bench.state
    bench.forget_digests()
    output.enter("save")
    pending = method.save(state, path)
    framework.gradients(state)
    output.enter("staged")
    pending.staged()
    framework.update(state)
    framework.synchronize(state)
    output.enter("finished")
    pending.finished()
    return pending


def marked_save(bench: Bench, method: Method[Any], case: Case, path: Path) -> None:
    """Save with every instant marked for the tracer that watches this process."""
    output = bench.output

    def passed(instant: Instant) -> None:
        """Mark an instant once every rank has come to it."""
        bench.world.barrier()
        if bench.world.rank == 0:
            mark(case.id, instant)
        bench.world.barrier()

    output.enter("save")
    passed("begin")
    pending = method.save(bench.state, path)
    passed("returned")
    output.enter("staged")
    pending.staged()
    passed("staged")
    output.enter("finished")
    pending.finished()
    passed("finished")
    time.sleep(_LATE_WORK_WAIT_S)
    passed("watched")


def check_finished(path: Path, written: storage.Fingerprint) -> None:
    """Raise when a checkpoint changed after `finished`, or when files lie beside it."""
    changed = [
        name for name, seen in storage.fingerprint(path).items() if written.get(name) != seen
    ]
    if changed:
        raise LateWork(f"{', '.join(changed[:4])} changed after finished() had returned")
    stray = [entry.name for entry in path.parent.iterdir() if entry != path]
    if stray:
        raise StrayFiles(f"the method left {', '.join(sorted(stray)[:4])} beside the checkpoint")


def check_nothing_open(path: Path) -> None:
    """Raise when a file of the checkpoint is still open for writing, here or in a child process."""
    writers = storage.open_writers(path, [os.getpid(), *usage.descendants()])
    if writers:
        raise LateWork(
            f"{Path(writers[0]).name} was still open for writing after finished() had returned"
        )


def check_nothing_mapped(path: Path) -> None:
    """Raise when a load left a mapping of a checkpoint file: its values are then still to be read."""
    mapped = storage.mapped_files(path)
    if mapped:
        raise NotRead(
            f"{Path(mapped[0]).name} is still mapped after the load: values are read later, outside the clock"
        )


def check_from_memory(read_bytes: int, file_bytes: int, looks: int) -> None:
    """Raise where a load that declares to restore from memory read its files; `looks` of them may have been at a header."""
    if read_bytes > max(file_bytes // 2, looks * _READAHEAD_BYTES):
        raise NotFromMemory(
            f"the load read {read_bytes} of the checkpoint's {file_bytes} bytes from the device: not from memory"
        )


def cache_state(resident: float, read_bytes: int, file_bytes: int, counted: bool) -> CacheState:
    """Say whether a load was cold: no page in memory before it, and every byte through the device during it.

    `read_bytes` are the device's, of all ranks; `counted` whether this directory's device reads are
    accounted at all. Raises NotRead where the values cannot have come from the files.
    """
    if resident < 0 or not counted:
        return "unknown"
    if resident > _RESIDENT_AT_MOST:
        return "warm"
    if read_bytes < file_bytes // 2:
        raise NotRead(
            f"the load read {read_bytes} of the checkpoint's {file_bytes} bytes from the device, and none were cached: "
            "its values came from somewhere else"
        )
    return "cold" if read_bytes >= _READ_AT_LEAST * file_bytes else "warm"
