"""Saves: timed, or across a training step and kept for the process that loads them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.base import Method, Pending
from harness.wire.case import Case, Task
from harness.wire.records import FileEntry, KeptRecord
from harness.worker import storage, usage
from harness.worker.bench import Bench, load_class
from harness.worker.clock import now_ns
from harness.worker.guards import fresh_bits, from_memory, late_work, stored_pages
from harness.worker.guards.stored_pages import StoredPages
from harness.worker.guards.waits_in_step import timed_update
from harness.worker.kept import Kept
from harness.worker.timing import no_collection
from harness.worker.verify import Digests, listed

LATE_WORK_WAIT_S = 0.1
_HARD_LINKS = "files of its checkpoints have several names (hard links), and count once"


@dataclass(frozen=True)
class SaveTimes:
    """The time that a save blocked in each of its phases."""

    save_ns: int
    staged_ns: int
    finished_ns: int
    sync_ns: int


@dataclass(frozen=True)
class Opened:
    """A method that was opened, and what that took.

    `open_ns` is the time until the device of the slowest rank was done. `read_bytes` were read by
    system calls meanwhile, over all ranks.
    """

    method: Method[Any]
    open_ns: int
    read_bytes: int


def timed_open(bench: Bench, case: Case) -> Opened:
    """Make a method and open it on the state."""
    bench.output.enter("open")
    # The first method of a process would pay for imports that the next ones share.
    load_class(case.method_path)
    bench.world.barrier()
    read_before_bytes = usage.bytes_of_read_calls()
    begin = now_ns()
    with no_collection():
        method = bench.open_method(case)
        bench.framework.synchronize(bench.state)
    open_ns = now_ns() - begin
    read_bytes = usage.bytes_of_read_calls() - read_before_bytes
    # A rank that waits for the others here does not hang in `open`.
    with bench.phase("prepare"):
        return Opened(method, bench.world.maximum(open_ns), bench.world.total(read_bytes))


def timed_save(bench: Bench, method: Method[Any], path: Path) -> SaveTimes:
    """Save in the phase that the caller has entered, and make the checkpoint durable.

    The instants are begin, returned, staged, finished and durable. The clock stands still between
    two phases, while the mark for the driver is set.
    """
    output = bench.output
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
    return SaveTimes(
        save_ns=returned - begin,
        staged_ns=staged - staging,
        finished_ns=finished - finishing,
        sync_ns=timed_sync(bench, [path]),
    )


@dataclass(frozen=True)
class Finished:
    """A checkpoint as it was when its save had finished. `pages` are None on ranks above 0."""

    path: Path
    fingerprint: storage.Fingerprint
    pages: StoredPages | None

    @classmethod
    def now(cls, bench: Bench, path: Path) -> Finished:
        """Return a checkpoint as it is now."""
        return cls(path, storage.fingerprint(path), bench.stored_pages(path))

    def check(self, bench: Bench, case: Case) -> None:
        """Raise if a thread has failed, or if somebody was at work on the checkpoint since then.

        The errors are BackgroundError, ChangedPages, LateWork and StrayFiles.
        """
        bench.thread_errors.raise_first()
        if self.pages is not None:
            stored_pages.check_same(self.pages, self.path, "a moment later")
        if not bench.guards(late_work.NAME):
            return
        touched = late_work.check_finished(self.path, self.fingerprint)
        if touched:
            sentence = (
                f"the time of {listed(touched)} changed after finished() had returned; a network "
                "file system may have set it, or something may still have written"
            )
            bench.write_finding(case, "late-times", "mark", sentence)


def check_timed(bench: Bench, task: Task, finished: Finished, files: Sequence[FileEntry]) -> None:
    """Raise if a timed checkpoint is not quiet, or has too few of the bytes of the state.

    `files` are its files when it was durable.
    """
    finished.check(bench, task.case)
    if storage.has_hard_links(finished.path):
        bench.write_finding(task.case, "hard-links", "remark", _HARD_LINKS)
    if not task.files:
        if bench.guards(from_memory.NAME):
            from_memory.check_no_files(files)
    elif bench.guards(fresh_bits.NAME):
        fresh_bits.check_holds(storage.total_bytes(files), bench.fresh_bytes)


def timed_sync(bench: Bench, paths: Sequence[Path]) -> int:
    """Make checkpoints durable once all ranks have finished. Return this rank's nanoseconds.

    One rank of each node flushes, whatever the method has flushed itself. The others return 0.
    """
    duration_ns = 0
    bench.world.barrier()
    begin = now_ns()
    if bench.world.local_rank == 0:
        for path in paths:
            storage.sync_tree(path)
        duration_ns = now_ns() - begin
    bench.world.barrier()
    return duration_ns


def overlapped_save(bench: Bench, method: Method[Any], path: Path) -> tuple[Pending, int]:
    """Save across a training step, untimed. Return the save when it has finished.

    Return also the nanoseconds of the optimizer's update after `staged`.

    Forward and backward run before `staged`, the optimizer's step before `finished`. So a method
    that aliases the live state, or copies batch-norm statistics too late, writes something else
    than the state it was given.
    """
    output = bench.output
    framework = bench.framework
    state = bench.state
    bench.forget_digests()
    output.enter("save")
    pending = method.save(state, path)
    framework.gradients(state)
    output.enter("staged")
    pending.staged()
    framework.synchronize(state)
    # Ranks that saved nothing are here first, and their update would wait for the others.
    bench.world.barrier()
    update_ns = timed_update(bench)
    output.enter("finished")
    pending.finished()
    return pending, update_ns


def keep_checkpoint(
    bench: Bench,
    case: Case,
    method: Method[Any],
    drawn: Sequence[Kept] = (),
) -> int:
    """Save across a training step, and keep the checkpoint and its digests. Close the method.

    `drawn` are checkpoints that are kept too. Return the nanoseconds of the optimizer's update
    after `staged`.
    """
    with bench.phase("prepare"):
        # Kept checkpoints are two steps apart. After a load of one of them, one step of training
        # therefore never leads to the state of another.
        bench.train()
        bench.add_fresh_bits()
        expected = bench.digests()
    return save_for_loaders(bench, case, method, expected, drawn)


def save_for_loaders(
    bench: Bench, case: Case, method: Method[Any], expected: Digests, drawn: Sequence[Kept] = ()
) -> int:
    """Save for the loading process, store what it must restore, and close the method.

    Raise as `Finished.check` where something still works on the checkpoint, or files lie beside it.
    Return the nanoseconds of the optimizer's update after `staged`.
    """
    path = bench.checkpoints.fresh()
    pending, update_ns = overlapped_save(bench, method, path)
    bench.world.barrier()
    if bench.guards(late_work.NAME):
        late_work.check_nothing_open(path)
    saved = Finished.now(bench, path)
    time.sleep(LATE_WORK_WAIT_S)
    bench.close_method(method)
    bench.world.barrier()
    with bench.phase("finished"):
        # Its destructor may still write, and such a write must be seen.
        del pending
        saved.check(bench, case)
    bench.checkpoints.keep(case, [*drawn, Kept(path, expected, saved.pages)])
    record = KeptRecord(
        kind="kept", **bench.identity(case), leaves=len(expected), saved_in=bench.job.role
    )
    bench.write_common(record)
    return update_ns
