"""Saves with every instant marked, for the tracer around this process. Never timed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from adapters.base import Method
from harness.wire.case import Case, Task
from harness.wire.marks import Instant, mark
from harness.worker.bench import Bench, Entries
from harness.worker.saving import LATE_WORK_WAIT_S


def run_traces(bench: Bench, entries: Entries) -> None:
    """Save once with every instant marked, for the tracer around this process.

    A traced save shows which calls are made and how many bytes they take. Training does not change
    that, so the state is a fresh one.
    """

    def trace(task: Task) -> None:
        method = bench.method(task.case)
        marked_save(bench, method, task.case, bench.fresh(bench.folders.trial))
        bench.output.enter("close")
        method.close()
        bench.clear(bench.folders.trial)

    bench.attempt(entries, trace)


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
    time.sleep(LATE_WORK_WAIT_S)
    passed("watched")
