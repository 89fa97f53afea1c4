"""Guard `drawn-saves`: timed saves are loaded and verified too, and nobody knows beforehand which.

A method whose timed saves lose their errors would otherwise be judged by a save that was not timed.
"""

from __future__ import annotations

import secrets

from harness.worker.kept import Kept
from harness.worker.world import World

NAME = "drawn-saves"


class Reservoir:
    """A few of many checkpoints, each of which stays with the same probability.

    Algorithm R: J. S. Vitter, Random sampling with a reservoir, ACM Transactions on Mathematical
    Software 11(1), 1985. A checkpoint is drawn after it was written, and all ranks draw the same.
    """

    def __init__(self, capacity: int, world: World) -> None:
        """`capacity` is the number of checkpoints that stay."""
        self.drawn: list[Kept] = []
        self.capacity = capacity
        self._world = world
        self._offered = 0

    def offer(self, checkpoint: Kept) -> Kept | None:
        """Take a checkpoint in or not. Return the one that has no place, if there is one."""
        self._offered += 1
        if len(self.drawn) < self.capacity:
            self.drawn.append(checkpoint)
            return None
        place = self._world.agreed(secrets.randbelow(self._offered))
        if place >= self.capacity:
            return checkpoint
        replaced = self.drawn[place]
        self.drawn[place] = checkpoint
        return replaced
