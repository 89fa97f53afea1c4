"""The surroundings of a clock: things that are kept out of it, or read before and after it."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from harness.wire.records import Usage
from harness.worker import storage, usage
from harness.worker.output import Output
from harness.worker.world import World


class Timed:
    """A region of code in which a clock runs, begun by all ranks together.

    Before the block, all ranks meet in a barrier, the counters of the process are read, and the
    garbage collector is switched off. After the block it is switched on again. Then `usage` says
    what the block used, and `device_written_bytes` what the device below `scratch` has taken
    meanwhile, or None where no device tells. The clock itself runs inside the block, right beside
    the calls that it times, because entering and leaving a block takes a microsecond.
    """

    usage: Usage
    started_at_s: float
    device_written_bytes: int | None = None

    def __init__(self, world: World, output: Output, scratch: Path, phase: str) -> None:
        self._scratch = scratch
        self._world = world
        self._output = output
        self._phase = phase

    def __enter__(self) -> Timed:
        self._world.barrier()
        self._device_before = storage.device_written_bytes(self._scratch)
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
        device_now = storage.device_written_bytes(self._scratch)
        if device_now is not None and self._device_before is not None:
            self.device_written_bytes = device_now - self._device_before

    def foreign_bytes(self) -> int | None:
        """Return what others wrote to the device meanwhile; None where no device tells.

        All ranks ask together, because what any rank wrote is not foreign.
        """
        own_bytes = self._world.total(self.usage.written_bytes)
        if self.device_written_bytes is None:
            return None
        return max(0, self.device_written_bytes - own_bytes)


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
