"""The surroundings of a clock: things that are kept out of it, or read before and after it."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from types import TracebackType

from harness.wire.records import Usage
from harness.worker import usage
from harness.worker.output import Output
from harness.worker.world import World


class Timed:
    """A region of code in which a clock runs, begun by all ranks together.

    Before the block, all ranks meet in a barrier, the counters of the process are read, and the
    garbage collector is switched off. After the block it is switched on again, and `usage` says
    what the block used. The clock itself runs inside the block, right beside the calls that it
    times, because entering and leaving a block takes a microsecond.
    """

    usage: Usage
    started_at_s: float

    def __init__(self, world: World, output: Output, phase: str) -> None:
        self._world = world
        self._output = output
        self._phase = phase

    def __enter__(self) -> Timed:
        self._world.barrier()
        self._usage_before = usage.begin()
        self.started_at_s = time.time()
        gc.disable()
        self._output.enter(self._phase)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        gc.enable()
        self.usage = usage.since(self._usage_before)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out of the clock."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def no_old_garbage() -> Iterator[None]:
    """Let collections between samples look only at objects that came after this call.

    The modules of a framework alone take a tenth of a second to look through.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
