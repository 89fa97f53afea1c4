"""Guard `waits-in-step`: a save does not make training wait elsewhere than where it is timed.

An engine that wraps the optimizer can wait there for its copy, and its stall seems to be nothing.
So an update of the optimizer after `staged` is compared with updates beside a raw write of as many
bytes, which loads memory and the disk as well. These are taken between the rounds of samples, for
all methods together. Where the update after `staged` takes longer than each of them, pairs are
taken as long as most of them say so, so that the difference has an interval.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from harness.worker.bench import Bench
from harness.worker.clock import now_ns

NAME = "waits-in-step"
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

    def add(self, beside_raw_ns: int, after_staged_ns: int) -> None:
        """Take over a pair."""
        self.beside_raw_ns.append(beside_raw_ns)
        self.after_staged_ns.append(after_staged_ns)


def train_beside_raw(bench: Bench, size_bytes: int) -> int:
    """Take a training step whose update is beside a raw write of a checkpoint's bytes.

    Return the nanoseconds that the update took on the slowest rank.
    """
    bench.forget_digests()
    bench.framework.gradients(bench.state)
    bench.framework.synchronize(bench.state)
    bench.world.barrier()
    with ThreadPoolExecutor(max_workers=1) as writer:
        writing = writer.submit(bench.ceiling.write_share, size_bytes)
        update_ns = timed_update(bench)
        writing.result()
    return bench.world.maximum(update_ns)


def _is_clearly_longer(after_ns: int, beside_ns: int) -> bool:
    return after_ns - beside_ns > max(_SUSPICIOUS_NS, _SUSPICIOUS_SHARE * beside_ns)


def timed_update(bench: Bench) -> int:
    """Update the state, and return the nanoseconds until the device has done it."""
    begin = now_ns()
    bench.framework.update(bench.state)
    bench.framework.synchronize(bench.state)
    return now_ns() - begin
