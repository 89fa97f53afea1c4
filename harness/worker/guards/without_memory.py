"""Guard `without-memory`: what a method restores from memory is in its files too.

Its timed loads come from memory. So the files could hold anything, and nobody would notice before
the memory is lost. After the timed loads, the memory is removed, and the files are loaded.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.worker.world import World

NAME = "without-memory"


def remove(memory: Path, world: World) -> None:
    """Remove the checkpoints that a method keeps in memory, once every rank is done with them.

    All ranks are on one machine, because a method on several nodes is given no memory.
    """
    world.barrier()
    if world.rank == 0:
        shutil.rmtree(memory, ignore_errors=True)
    world.barrier()
