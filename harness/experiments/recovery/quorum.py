"""Ranks that agree in a quorum before each step, and go on before a dead one is replaced.

The new process gets the state of a living rank when it joins them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from adapters.base import ElasticPeers, Handed, PeerLost
from harness.experiments.recovery.member import Member, Parts
from harness.surviving import RankLost
from harness.worker.bench import Bench

STEPS_TOGETHER = 4
"""The steps that all ranks take after a new one has joined."""

_JOINS_WITHIN_S = 300.0
_GATHER_PAUSE_S = 0.02


class QuorumWorld:
    """The ranks that the last quorum has named; see `TrainingWorld`."""

    def __init__(self, peers: ElasticPeers, rank: int) -> None:
        self.slot = rank
        self.slots: tuple[int, ...] = ()
        self.team = None
        self.agreement_s = 0.0
        self._peers = peers
        self._meeting_s = 0.0

    def rank_of(self, slot: int) -> int:
        """Return the place of a slot in the quorum."""
        return self.slots.index(slot)

    def meet(self) -> bool:
        """Agree on the ranks of the next step, and return whether their group was made anew.

        Raises RankLost if one of them dies meanwhile.
        """
        begin_s = time.monotonic()
        try:
            slots = self._peers.meet()
        except PeerLost as error:
            raise RankLost(str(error)) from None
        self._meeting_s = time.monotonic() - begin_s
        if slots is not None:
            self.slots = slots
        return slots is not None

    @contextlib.contextmanager
    def protected(self) -> Iterator[None]:
        """Exchange something in a block. Raises RankLost where this rank does not take the step."""
        try:
            yield
        except PeerLost as error:
            self._peers.commit()
            raise RankLost(str(error)) from None
        begin_s = time.monotonic()
        is_taken = self._peers.commit()
        self.agreement_s = self._meeting_s + time.monotonic() - begin_s
        if not is_taken:
            raise RankLost("the ranks did not agree that the step is done")


class QuorumMember(Member):
    """A rank whose steps each begin with a quorum."""

    world: QuorumWorld

    def __init__(self, world: QuorumWorld, parts: Parts) -> None:
        super().__init__(world, parts)
        # the step at which all ranks were last together anew; None where one is missing
        self.whole_since: int | None = None
        self._missing_since_s = time.monotonic()
        self._knows_loss = False

    def agree(self) -> None:
        """Meet the ranks of the next step, and note who they are where their group is new."""
        before = self.world.slots
        if not self.world.meet():
            return
        slots = self.world.slots
        grows = set(before) < set(slots)
        if not (grows or self._knows_loss):
            self.log.write("detected")
        self._knows_loss = False
        lost = [slot for slot in before if slot not in slots]
        taken = [slot for slot in slots if slot not in before]
        self.log.write("repaired", slots=slots, lost=lost, taken=taken, step=self.step)
        self.log.write("restored", step=self.step)
        if len(slots) == self.script.members:
            self.whole_since = self.step
        elif self.whole_since is not None:
            self.whole_since = None
            self._missing_since_s = time.monotonic()

    def give_up(self, error: RankLost) -> None:
        """Go back to where the step began, because this rank does not take it."""
        self.log.write("detected", told=str(error))
        self._knows_loss = True
        self.training.assign(self.own)
        self.training.framework.synchronize(self.training.state)

    def give(self) -> Handed:
        """Return what another rank needs that is behind this one."""
        return self.step, self.training.shared_leaves()

    def take(self, handed: Handed) -> None:
        """Take over what another rank has. What this rank alone has stays its own."""
        step, shared = handed
        if step == self.step + 1 and self.own_after:
            # The others have taken the step that this rank gave up after its forward passes.
            self.own = self.own_after
        self.training.assign(shared)
        self.training.assign(self.own)
        self.training.framework.synchronize(self.training.state)
        self.training.step = step

    def is_done(self) -> bool:
        """Return whether all steps are done, the last ones by all ranks together.

        After a kill, they go on until a new rank has joined them, within a limit.
        """
        if not super().is_done():
            return False
        if self.script.planned:
            return True
        if self.whole_since is None:
            return time.monotonic() - self._missing_since_s > _JOINS_WITHIN_S
        return self.step >= self.whole_since + STEPS_TOGETHER

    def takes_leave(self) -> bool:
        """Return whether this rank is to leave before the next step, without dying."""
        return self.script.planned and any(
            (kill.step, kill.slot) == (self.step, self.world.slot) for kill in self.script.kills
        )


def train(bench: Bench, parts: Parts, is_new: bool) -> None:
    """Train until all steps are done. A rank that `is_new` joins others that train already."""
    peers = bench.peers
    assert isinstance(peers, ElasticPeers)
    member = QuorumMember(QuorumWorld(peers, bench.world.rank), parts)
    member.begin()
    parts.log.write("ready")
    peers.join(member.give, member.take)
    if not is_new:
        gather(bench, member)
    while not (member.is_done() or member.takes_leave()):
        bench.output.enter("train")
        try:
            member.take_step()
        except RankLost as error:
            member.give_up(error)
    bench.output.finish()
    peers.leave()


def gather(bench: Bench, member: QuorumMember) -> None:
    """Return when the quorum has all ranks, because a few must not begin without the others."""
    # Only once, because a phase that begins anew is progress, and these ranks make none.
    bench.output.enter("wait")
    while len(member.world.slots) < member.script.members:
        # A rank that joins just now may break up the group of the others.
        with contextlib.suppress(RankLost):
            member.agree()
        time.sleep(_GATHER_PAUSE_S)
