"""The timed region: what is kept out of the clock, and what is read around it."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from types import TracebackType

from harness.wire.records import Usage
from harness.worker import usage
from harness.worker.clock import now_ns
from harness.worker.output import Output
from harness.worker.world import World


class Timed:
    """One region of code with the clock running, begun by all ranks together.

    `with Timed(world, output, "load") as load:` starts the clock last and stops it first. So the
    barrier, the counters of the process and the switch of the garbage collector are outside it. A
    save has several phases, which it times itself within the region.
    """

    duration_ns: int
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
        self._begin_ns = now_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.duration_ns = now_ns() - self._begin_ns
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
