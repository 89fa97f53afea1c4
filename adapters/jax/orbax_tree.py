"""Orbax: every rank writes a share of one folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orbax.checkpoint as ocp

from adapters.base import Entry, Method, Pending
from adapters.jax import ocdbt
from adapters.jax.framework import Jax
from adapters.jax.state import ROLES, State
from adapters.shared.formats import zarr
from workloads import Role


class Orbax(Method[State]):
    """Options: those of `PyTreeCheckpointHandler`, of which `use_compression` concerns the zarr2 format alone."""

    framework: Jax

    def open(self, state: State) -> None:
        """Make the checkpointer."""
        self.checkpointer = self.new_checkpointer(ocp.PyTreeCheckpointHandler(**self.options))

    def new_checkpointer(self, handler: ocp.PyTreeCheckpointHandler) -> ocp.Checkpointer:
        """Return one that has finished when `save` returns."""
        return ocp.Checkpointer(handler)

    def save(self, state: State, path: Path) -> Pending:
        """Write one folder."""
        # Orbax takes only arrays that all ranks hold together.
        self.checkpointer.save(
            path, args=ocp.args.PyTreeSave(self.framework.strategy.shared(state.tree()))
        )
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read new arrays like the state's, each rank its parts of them, and put them in their place.

        The state's own arrays are what tells Orbax which rank gets which part, whatever ranks and
        parts there were at the save.
        """
        tree = state.tree()
        target = self.framework.strategy.target(tree)
        arguments = ocp.checkpoint_utils.construct_restore_args(target)
        restored = self.checkpointer.restore(
            path, args=ocp.args.PyTreeRestore(target, restore_args=arguments)
        )
        state.adopt(self.framework.strategy.own(restored, tree))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the arrays' chunks, and what describes them in the same store."""
        values = (
            ocdbt.values(path, zarr.is_description)
            if self.options["use_ocdbt"]
            else zarr.folder(path)
        )
        return zarr.chunks(values, _role)

    def close(self) -> None:
        """Wait for the checkpointer's threads and end them."""
        self.checkpointer.close()


def _role(array: str) -> Role | None:
    """Return the role of an array by the parts of its place in the tree, which Orbax joins by dots."""
    return ROLES.get(array.partition(".")[0])


class AsyncSave(Pending):
    """What an `AsyncCheckpointer` has under way.

    It copies to the host before `save` returns, so there is nothing to stage.
    """

    def __init__(self, checkpointer: ocp.AsyncCheckpointer) -> None:
        self._checkpointer = checkpointer

    def finished(self) -> None:
        """Return when the folder has its final name; raises what went wrong in the background."""
        self._checkpointer.wait_until_finished()


class OrbaxAsync(Orbax):
    """`AsyncCheckpointer`: a copy in host memory, written by a thread."""

    checkpointer: ocp.AsyncCheckpointer

    def new_checkpointer(self, handler: ocp.PyTreeCheckpointHandler) -> ocp.AsyncCheckpointer:
        """Return one that goes on in the background when `save` returns."""
        return ocp.AsyncCheckpointer(handler)

    def save(self, state: State, path: Path) -> Pending:
        """Copy the state to the host and start to write one folder."""
        super().save(state, path)
        return AsyncSave(self.checkpointer)
