"""Ceilings that alternate with samples, so that each sample stands between two of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from harness.wire.records import Ceilings
from harness.worker.bench import Bench
from harness.worker.clock import now_ns

AGE_LIMIT_NS = 5_000_000_000
DISTURBED_ABOVE = 0.10
FOREIGN_ABOVE = 0.05  # of the ceiling's bytes


class _Measured(NamedTuple):
    size_bytes: int
    duration_ns: int
    ended_ns: int


class Fence:
    """Ceilings of one direction between the samples: C S C S C.

    A ceiling is taken as a sample is: on a quiet disk, and after memory has been backed. The helper
    that backs memory leaves the processor's caches full of its own pages, so what follows it is a
    little slower. Ceiling and sample must both pay for that. A direct transfer takes no new memory,
    so the few pages that are backed for any sample suffice. Backing as many as for a sample took
    forty times as long, and changed neither writes (0.95 [0.89-1.05]) nor reads (1.02 [0.90-1.06],
    40 pairs).
    """

    def __init__(self, bench: Bench, operation: Literal["write", "read"]) -> None:
        ceiling = bench.ceiling
        self._settle = bench.settle
        self._transfer_ns = ceiling.write_ns if operation == "write" else ceiling.read_ns
        self._direct = ceiling.storage.direct
        self._world = bench.world
        self._last: _Measured | None = None
        # Without direct I/O, the page cache takes a copy.
        self._copies = 0 if ceiling.storage.direct else 1

    def before(self, size_bytes: int) -> int:
        """Return the duration of the ceiling before a sample.

        The ceiling after the last sample serves, if it is recent and of this size.
        """
        last = self._last
        if last is not None and last.size_bytes == size_bytes and self._is_recent(last):
            return last.duration_ns
        return self._measure(size_bytes)

    def after(self, size_bytes: int, before_ns: int) -> Ceilings:
        """Measure the ceiling after a sample, and return both."""
        after_ns = self._measure(size_bytes)
        self._last = _Measured(size_bytes, after_ns, now_ns())
        return Ceilings(
            bytes=size_bytes,
            before_ns=before_ns,
            after_ns=after_ns,
            direct=self._direct,
            settled=True,
        )

    def _measure(self, size_bytes: int) -> int:
        self._settle(size_bytes, self._copies)
        return self._transfer_ns(size_bytes)

    def _is_recent(self, last: _Measured) -> bool:
        """Return whether a ceiling is recent. All ranks agree, because they measure together."""
        return self._world.maximum(now_ns() - last.ended_ns) < AGE_LIMIT_NS


def is_disturbed(ceilings: Ceilings, quiet: bool | None, foreign_bytes: int | None) -> bool:
    """Return whether a sample says little.

    That is so where its ceilings differ, or where the device was busy with the writes of others.
    """
    if ceilings.spread > DISTURBED_ABOVE:
        return True
    if quiet is not False or foreign_bytes is None:
        return False
    return foreign_bytes > FOREIGN_ABOVE * ceilings.bytes
