"""Orbax's CheckpointManager, which names checkpoints and removes old ones."""

from __future__ import annotations

from pathlib import Path

import orbax.checkpoint as ocp

from adapters.base import NothingToRestore, Pending, Store
from adapters.jax.framework import Jax
from adapters.jax.orbax_tree import AsyncSave, to_restore
from adapters.jax.state import State


class OrbaxManager(Store[State]):
    """The manager as shipped. A thread writes a copy in host memory and removes old folders."""

    framework: Jax

    def open(self, state: State, folder: Path) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=self.options["keep"])
        self._manager = ocp.CheckpointManager(folder, options=options)

    def save(self, state: State, step: int) -> Pending:
        # Orbax refuses arrays that one rank alone holds.
        shared = self.framework.strategy.shared(state.tree())
        self._manager.save(step, args=ocp.args.PyTreeSave(shared))
        return AsyncSave(self._manager)

    def restore_latest(self, state: State) -> int:
        step = self._manager.latest_step()
        if step is None:
            raise NothingToRestore(f"no checkpoint in {self._manager.directory}")
        tree = state.tree()
        wanted = to_restore(self.framework.strategy.target(tree))
        restored = self._manager.restore(step, args=wanted)
        state.adopt(self.framework.strategy.own(restored, tree))
        return step

    def close(self) -> None:
        self._manager.close()
