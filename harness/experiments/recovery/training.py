"""The training of one rank by micro-batches, whose gradients the ranks add up over MPI.

The global batch is always the same examples, however many ranks there are, and its micro-batches
have a fixed shape. So nothing is compiled again, and no example is left out or seen twice, when the
number of ranks changes. The position in the data counts examples. Training goes over a few examples
again and again, so that the loss falls within the few steps of a job.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.base import ALL_ROLES, Framework
from harness.experiments.recovery.events import EventLog
from harness.experiments.recovery.script import (
    EPOCH_STEPS,
    MICRO_BATCH_EXAMPLES,
    MICRO_BATCHES,
    Instant,
    Kill,
    Script,
    shares,
)
from harness.worker.world import FIRST_PARENT
from workloads import Batch, Role, Workload

OWN_ROLES = frozenset({Role.BUFFER, Role.RNG})
"""Leaves that every rank has its own values of, and that die with it."""

_BUCKETS = 4  # of one gradient exchange, so that a rank can die in the middle of it
_DATA_SEED = 0

Leaves = dict[str, bytes]
Floats = NDArray[np.float32]


class Training:
    """The state of one rank, and its part of every step."""

    def __init__(
        self, framework: Framework[Any], state: Any, workload: Workload, script: Script
    ) -> None:
        self.framework = framework
        self.state = state
        self.workload = workload
        self.script = script
        self.step = 0

    def own_leaves(self) -> Leaves:
        """Return copies of the leaves that this rank alone has."""
        return self.leaves(OWN_ROLES)

    def shared_leaves(self) -> Leaves:
        """Return copies of the leaves that are the same on every rank."""
        return self.leaves(ALL_ROLES - OWN_ROLES)

    def leaves(self, roles: Collection[Role]) -> Leaves:
        """Return copies of the leaves of some roles."""
        leaves = self.framework.leaves(self.state, roles)
        return {leaf.name: bytes(leaf.data) for leaf in leaves}

    def leaf_bytes(self) -> dict[str, int]:
        """Return the size of every leaf."""
        leaves = self.framework.leaves(self.state)
        return {leaf.name: leaf.data.nbytes for leaf in leaves}

    def assign(self, leaves: Leaves) -> None:
        """Set leaves to the values of copies."""
        if leaves:
            views = {name: memoryview(data) for name, data in leaves.items()}
            self.framework.assign(self.state, views)

    def gradients(
        self, slot: int, slots: tuple[int, ...], after_first: Callable[[], None]
    ) -> Floats:
        """Return the sum of a slot's gradients over its micro-batches, the sum of the losses last.

        `after_first` is called once, when the first micro-batch has been computed.
        """
        drop = self.script.how.drops
        total: Floats | None = None
        loss = 0.0
        for number in shares(slots, self.script.members, drop)[slot]:
            part = np.frombuffer(
                self.framework.gradients_of(self.state, self._micro_batch(number)), np.float32
            )
            loss += self.framework.loss(self.state)
            if total is None:
                total = part
                after_first()
            else:
                total += part
        assert total is not None  # there are at least as many micro-batches as ranks
        return np.append(total, np.float32(loss))

    def micro_batches(self, slots: tuple[int, ...]) -> int:
        """Return how many micro-batches a step of these slots has."""
        drop = self.script.how.drops
        return sum(len(share) for share in shares(slots, self.script.members, drop).values())

    def take_step(self, total: Floats, slots: tuple[int, ...]) -> float:
        """Take a step with the sum over all ranks, and return the mean loss."""
        total /= self.micro_batches(slots)
        self.framework.update_with(self.state, total[:-1].data)
        self.framework.synchronize(self.state)
        self.step += 1
        return float(total[-1])

    def warm_up(self) -> None:
        """Compute a micro-batch and take a step, and undo both.

        So everything that a step needs is compiled, and no later step takes longer for that.
        """
        before = self.leaves(ALL_ROLES)
        gradients = self.framework.gradients_of(self.state, self._micro_batch(0))
        self.framework.update_with(self.state, gradients)
        self.assign(before)
        self.framework.synchronize(self.state)

    def _micro_batch(self, number: int) -> Batch:
        step_of_epoch = self.step % EPOCH_STEPS
        first = (step_of_epoch * MICRO_BATCHES + number) * MICRO_BATCH_EXAMPLES
        return self.workload.data.examples(first, MICRO_BATCH_EXAMPLES, _DATA_SEED)


class Striker:
    """Kills this process when it is its turn."""

    def __init__(self, kills: tuple[Kill, ...], log: EventLog) -> None:
        self._kills = set(kills)
        self._log = log

    def is_due(self, step: int, instant: Instant, slot: int) -> bool:
        """Return whether the holder of a slot is to be killed at an instant of a step."""
        return Kill(step, instant, slot) in self._kills

    def strike(self, step: int, instant: Instant, slot: int) -> None:
        """Kill this process if it is its turn."""
        if self.is_due(step, instant, slot):
            self.kill(step, instant, slot)

    def kill(self, step: int, instant: Instant, slot: int) -> None:
        """Kill this process, or stop it, or kill the launcher."""
        if instant == "launcher":
            # This rank trains on, and must end by itself as the others do.
            self.note(step, instant, slot)
            os.kill(FIRST_PARENT, signal.SIGKILL)
            return
        self._log.write("kill", step=step, instant=instant, slot=slot)
        os.kill(os.getpid(), signal.SIGSTOP if instant == "stopped" else signal.SIGKILL)
        # The signal is certain to come, but another thread may run on for a moment.
        time.sleep(60)

    def note(self, step: int, instant: Instant, slot: int) -> None:
        """Log a strike that leaves this process alive, which does not come a second time."""
        self._log.write("kill", step=step, instant=instant, slot=slot)
        self._kills.discard(Kill(step, instant, slot))

    def forget(self, lost: tuple[int, ...], step: int) -> None:
        """Forget the kills that have happened, because a spare holds these slots now."""
        self._kills = {kill for kill in self._kills if kill.slot not in lost or kill.step > step}


def in_buckets(
    total: Floats, added: Callable[[Floats], Floats], in_the_middle: Callable[[], None]
) -> None:
    """Replace a rank's gradients with the sum over all ranks, which `added` returns of a bucket.

    `in_the_middle` is called when half of the buckets have been exchanged.
    """
    for number, bucket in enumerate(np.array_split(total, _BUCKETS)):
        if number == _BUCKETS // 2:
            in_the_middle()
        bucket[...] = added(bucket)


def added_over_mpi(team: Any, values: Floats) -> Floats:
    """Return the sum over the ranks of a communicator."""
    summed = np.empty_like(values)
    team.Allreduce(values, summed)
    return summed
