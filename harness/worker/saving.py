"""Saves: timed, across a training step, and kept for a process that loads them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.base import Method, Pending
from harness.wire.case import Case
from harness.wire.records import KeptRecord
from harness.worker import storage, verify
from harness.worker.bench import Bench, no_collection
from harness.worker.checks import check_finished, check_nothing_open
from harness.worker.clock import now_ns

LATE_WORK_WAIT_S = 0.1


@dataclass(frozen=True)
class Phases:
    """How long a save blocked in each phase, in nanoseconds."""

    save_ns: int
    staged_ns: int
    finished_ns: int
    sync_ns: int


def timed_open(bench: Bench, case: Case, size_bytes: int) -> tuple[Method[Any], int]:
    """Make a method and open it on the state; returns it and nanoseconds until the last rank's device has done with that."""
    bench.settle(size_bytes)
    bench.world.barrier()
    begin = now_ns()
    with no_collection():
        method = bench.method(case)
        bench.framework.synchronize(bench.state)
    open_ns = now_ns() - begin
    bench.output.enter("prepare")  # who waits for the other ranks does not hang in `open`
    return method, bench.world.maximum(open_ns)


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
    time.sleep(LATE_WORK_WAIT_S)
    bench.output.enter("close")
    method.close()
    bench.world.barrier()
    bench.output.enter("finished")
    del pending
    bench.raise_thread_errors()
    check_finished(path, written)
