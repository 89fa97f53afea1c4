"""A rank that goes on after the failure of another one, and how it gets its state back.

This module imports mpi4py, so the worker imports it only when its ranks are there.
"""

from __future__ import annotations

import contextlib
import os
import signal

from harness.experiments.recovery.events import started_ticks
from harness.experiments.recovery.member import Copy, InMemory, Member, Parts
from harness.experiments.recovery.peers import PeerWorld
from harness.experiments.recovery.training import Leaves
from harness.surviving import RankLost, Repair, SurvivingWorld


class Survivor(Member):
    """A member that goes on after a failure of another one."""

    world: SurvivingWorld | PeerWorld

    def __init__(self, world: SurvivingWorld | PeerWorld, parts: Parts) -> None:
        super().__init__(world, parts)
        # The processes of this node by slot, because one that hangs has to be ended. Each has its
        # number, and when it was started.
        self.processes: dict[int, tuple[int, int]] = {}
        # Whether this process has taken a slot, and does not have yet what its holder alone had.
        self.lacks_own = False

    def give_up_step(self, step: int, slot: int) -> None:
        """Behave as if the exchange had failed on this rank alone, so that it falls behind."""
        self.striker.note(step, "apart", slot)
        self.mirrored = self.mirrored_after
        self.world.give_up()

    def take_slot(self, repair: Repair) -> None:
        """Come to work in a slot whose holder has died."""
        self.lacks_own = True
        if self.hashed is not None:
            # The others have compared the earlier ones.
            self.hashed = {step for step in self.hashed if step > repair.step}
        self.recover(repair)

    def recover(self, repair: Repair) -> None:
        """Come back after a repair, and begin again where another rank dies meanwhile."""
        while True:
            self.note(repair)
            try:
                self.restore(repair)
                break
            except RankLost:
                self.log.write("detected")
                repair = self.repair()
        self.lacks_own = False
        self.log.write("restored", step=self.step)

    def repair(self) -> Repair:
        """Repair the world."""
        step, slot = self.step, self.world.slot
        return self.world.repair(step, lambda: self.striker.strike(step, "repair", slot))

    def note(self, repair: Repair) -> None:
        """Log the repaired world, and forget the kills that led to it."""
        self.striker.forget(repair.lost, repair.step)
        self.end_lost(repair)
        self.log.write(
            "repaired", slots=repair.slots, lost=repair.lost, taken=repair.taken, step=repair.step
        )

    def end_lost(self, repair: Repair) -> None:
        """End the processes that held the lost slots, because one that hung must not come back.

        Every survivor of its node does so. Whoever has just taken a slot knows no processes.
        """
        for slot in repair.lost:
            if slot not in self.processes:
                continue
            number, ticks = self.processes.pop(slot)
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if started_ticks(number) == ticks:
                    os.kill(number, signal.SIGKILL)

    def restore(self, repair: Repair) -> None:
        """Bring every member to the same step. Raises RankLost if another one dies meanwhile."""
        if self.script.saves_files:
            self.roll_back_to_file()
        elif self.script.saves_in_memory:
            self.roll_back_in_memory(repair)
        else:
            self.take_from_peers(repair)
        self.striker.strike(repair.step, "restore", self.world.slot)
        if self.script.mirror:
            with self.world.protected():
                mirrored = self.shown_to_neighbour(self.own)
            if self.script.saves_in_memory:
                self.mirrored_in_memory = mirrored
            else:
                self.mirrored = mirrored

    def roll_back_to_file(self) -> None:
        """Load the newest complete checkpoint, on which all members agree."""
        self.checkpoints.wait()
        with self.world.protected():
            newest = max(self.checkpoints.steps(), default=0)
            step = self.world.team.bcast(newest)
        if step == 0:
            raise NothingSaved("a rank died before the first checkpoint was complete")
        self.load_files(step)
        self.own = self.training.own_leaves()
        with self.world.protected():
            self.world.team.Barrier()

    def roll_back_in_memory(self, repair: Repair) -> None:
        """Go back to the last checkpoint in memory. Those who have none get it from a member."""
        step, shared, own = self.in_memory
        with self.world.protected():
            step = self.world.team.bcast(step, self.world.rank_of(repair.source))
            shared = self.handed_over(repair, shared)
            own = self.own_of_lost(self.mirrored_in_memory, own)
        self.training.assign(shared)
        self.training.assign(own)
        self.training.framework.synchronize(self.training.state)
        self.training.step = step
        # Where nobody has a copy, a spare goes on with what it began with.
        self.own = own or self.training.own_leaves()
        self.in_memory = InMemory(step, shared or self.training.shared_leaves(), self.own)

    def take_from_peers(self, repair: Repair) -> None:
        """Get the state of a member that has it. The others go back to where the step began."""
        slot = self.world.slot
        needs_state = slot in repair.need_state
        shared: Leaves = {}
        with self.world.protected():
            if repair.need_state:
                is_source = slot == repair.source
                shared = self.handed_over(
                    repair, self.training.shared_leaves() if is_source else {}
                )
            own = self.own_of_lost(self.mirrored, self.own)
        is_behind = slot in repair.behind and not self.lacks_own
        if is_behind:
            # It had done everything of the step but the update.
            own = self.own_after
        if needs_state:
            self.training.assign(shared)
        self.training.assign(own)
        self.training.framework.synchronize(self.training.state)
        self.training.step = repair.step
        # Where nobody has a copy, a spare goes on with what it began with.
        self.own = own or self.training.own_leaves()

    def handed_over(self, repair: Repair, shared: Leaves) -> Leaves:
        """Return the source's shared leaves on the members that need them; elsewhere `shared`."""
        team, slot = self.world.team, self.world.slot
        if slot == repair.source:
            for receiver in repair.need_state:
                for name, data in shared.items():
                    team.send(name, dest=self.world.rank_of(receiver))
                    team.Send(data, dest=self.world.rank_of(receiver))
                team.send("", dest=self.world.rank_of(receiver))
        if slot not in repair.need_state:
            return shared
        received: Leaves = {}
        sender = self.world.rank_of(repair.source)
        sizes = self.training.leaf_bytes()
        while name := team.recv(source=sender):
            buffer = bytearray(sizes[name])
            team.Recv(buffer, source=sender)
            received[name] = bytes(buffer)
        return received

    def own_of_lost(self, mirrored: Copy | None, own: Leaves) -> Leaves:
        """Return what the dead holder of this slot alone had, from its mirror.

        It is empty where nobody has a copy. A process that has its own already keeps `own`.
        """
        if not self.script.mirror:
            return own
        copies: list[Copy | None] = self.world.team.allgather(mirrored)
        if not self.lacks_own:
            return own
        for copy in copies:
            if copy is not None and copy.slot == self.world.slot:
                return copy.leaves
        return {}


class NothingSaved(Exception):
    """There is no complete checkpoint to go back to."""
