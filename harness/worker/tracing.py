"""Saves with every instant marked, for the tracer around this process. Never timed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from adapters.base import Pending
from harness.wire.case import Case, Task
from harness.wire.marks import Instant, mark
from harness.worker.bench import Bench, Entries
from harness.worker.saving import LATE_WORK_WAIT_S


def run_traces(bench: Bench, entries: Entries) -> None:
    """Save once by the method of each task, with every instant marked.

    A traced save shows which calls are made and how many bytes they take. Training does not change
    that, so the state is a fresh one.
    """

    def trace(task: Task) -> None:
        method = bench.open_method(task.case)
        path = bench.checkpoints.fresh(task.case.id)
        marked_save(bench, method, task.case, path)
        bench.close_method(method)
        bench.checkpoints.discard(path)

    bench.attempt(entries, trace)


class Saves(Protocol):
    """A method, or what stands for one."""

    def save(self, state: Any, path: Path) -> Pending:
        """Save a state to a path."""


def marked_save(bench: Bench, method: Saves, case: Case, path: Path) -> None:
    """Save, and mark every instant for the tracer that watches this process."""

    def passed(instant: Instant) -> None:
        """Mark an instant once every rank has come to it."""
        bench.world.barrier()
        if bench.world.rank == 0:
            mark(case.id, instant)
        bench.world.barrier()

    with bench.phase("save"):
        passed("begin")
        pending = method.save(bench.state, path)
        passed("returned")
    with bench.phase("staged"):
        pending.staged()
        passed("staged")
    with bench.phase("finished"):
        pending.finished()
        passed("finished")
        # A write after `finished` must come before this mark, so that the reader can tell it.
        time.sleep(LATE_WORK_WAIT_S)
        passed("watched")
