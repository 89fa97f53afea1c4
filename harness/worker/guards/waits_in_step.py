"""Guard `waits-in-step`: a save does not make training wait elsewhere than where it is timed.

An engine that wraps the optimizer can wait there for its copy, and its stall seems to be nothing.
So an update of the optimizer after `staged` is compared with one beside a raw write of as many
bytes, which loads memory and the disk as well. Where the first takes longer, more pairs are taken
as long as most of them say so, so that the difference has an interval.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from harness.worker.bench import Bench
from harness.worker.clock import now_ns

NAME = "waits-in-step"
MORE_PAIRS = 5  # at most
_SUSPICIOUS_NS = 1_000_000
_SUSPICIOUS_SHARE = 0.2  # of the update beside a raw write


@dataclass
class Updates:
    """Updates of the optimizer, in pairs, as the slowest rank's nanoseconds."""

    beside_raw_ns: list[int] = field(default_factory=list)
    after_staged_ns: list[int] = field(default_factory=list)

    @property
    def are_suspicious(self) -> bool:
        """Return whether the update after `staged` took clearly longer in most pairs.

        One pair alone says so by chance in every third case of a busy machine.
        """
        pairs = zip(self.beside_raw_ns, self.after_staged_ns, strict=True)
        longer = [_is_clearly_longer(after_ns, beside_ns) for beside_ns, after_ns in pairs]
        return sum(longer) > len(longer) / 2

    def train_beside_raw(self, bench: Bench, size_bytes: int) -> None:
        """Take a training step whose update is beside a raw write of a checkpoint's bytes."""
        bench.forget_digests()
        bench.framework.gradients(bench.state)
        bench.framework.synchronize(bench.state)
        writer = threading.Thread(target=bench.ceiling.write_share, args=(size_bytes,))
        bench.world.barrier()
        writer.start()
        update_ns = timed_update(bench)
        writer.join()
        bench.thread_errors.raise_first()
        self.beside_raw_ns.append(bench.world.maximum(update_ns))

    def add_after_staged(self, bench: Bench, update_ns: int) -> None:
        """Take over this rank's update after `staged`."""
        self.after_staged_ns.append(bench.world.maximum(update_ns))


def _is_clearly_longer(after_ns: int, beside_ns: int) -> bool:
    return after_ns - beside_ns > max(_SUSPICIOUS_NS, _SUSPICIOUS_SHARE * beside_ns)


def timed_update(bench: Bench) -> int:
    """Update the state, and return the nanoseconds until the device has done it."""
    begin = now_ns()
    bench.framework.update(bench.state)
    bench.framework.synchronize(bench.state)
    return now_ns() - begin
