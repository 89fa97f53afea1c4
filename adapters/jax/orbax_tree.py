"""Orbax, with which every rank writes a share of one folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from adapters.base import Entry, Method, Pending
from adapters.jax import ocdbt
from adapters.jax.framework import Jax
from adapters.jax.state import ROLES, State
from adapters.shared.formats import zarr
from workloads import Role


class Orbax(Method[State]):
    """Orbax's `Checkpointer`.

    The options are those of `PyTreeCheckpointHandler`. One of them, `use_compression`, changes the
    zarr2 format alone.
    """

    framework: Jax

    def open(self, state: State) -> None:
        """Make the checkpointer."""
        self.checkpointer = self.new_checkpointer(ocp.PyTreeCheckpointHandler(**self.options))

    def new_checkpointer(self, handler: ocp.PyTreeCheckpointHandler) -> ocp.Checkpointer:
        """Return a checkpointer whose `save` returns when it has finished."""
        return ocp.Checkpointer(handler)

    def save(self, state: State, path: Path) -> Pending:
        # Orbax refuses arrays that one rank alone holds.
        shared = self.framework.strategy.shared(state.tree())
        self.checkpointer.save(path, args=ocp.args.PyTreeSave(shared))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read this rank's parts of new arrays, and put them in the place of the state's arrays.

        The shardings of the state's arrays say which rank gets which part. Other ranks may have
        saved other parts.
        """
        tree = state.tree()
        wanted = to_restore(self.framework.strategy.target(tree))
        restored = self.checkpointer.restore(path, args=wanted)
        state.adopt(self.framework.strategy.own(restored, tree))

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the chunks of the arrays, and their descriptions in the same store."""
        if self.options["use_ocdbt"]:
            return zarr.chunks(ocdbt.values(path, zarr.is_description), _role)
        return zarr.chunks(zarr.folder(path), _role)

    def close(self) -> None:
        """Wait for the threads of the checkpointer, and end them."""
        self.checkpointer.close()


def to_restore(target: dict[str, Any]) -> ocp.args.PyTreeRestore:
    """Return the arguments of a restore that makes arrays like those of `target`."""
    arguments = ocp.checkpoint_utils.construct_restore_args(target)
    return ocp.args.PyTreeRestore(target, restore_args=arguments)


def _role(array: str) -> Role | None:
    """Return the role of an array by its name, in which dots join the keys of the tree."""
    return ROLES.get(array.partition(".")[0])


class AsyncSave(Pending):
    """A save in progress of an `AsyncCheckpointer`, or of a manager that has one.

    It copies to the host before `save` returns, so there is nothing to stage.
    """

    def __init__(self, checkpointer: ocp.AsyncCheckpointer | ocp.CheckpointManager) -> None:
        self._checkpointer = checkpointer

    def finished(self) -> None:
        """Wait until the folder has its final name. Raises the error of a save that has failed."""
        self._checkpointer.wait_until_finished()


class OrbaxAsync(Orbax):
    """Orbax's `AsyncCheckpointer`, whose thread writes a copy in host memory."""

    checkpointer: ocp.AsyncCheckpointer

    def new_checkpointer(self, handler: ocp.PyTreeCheckpointHandler) -> ocp.AsyncCheckpointer:
        """Return a checkpointer that goes on in the background when `save` has returned."""
        return ocp.AsyncCheckpointer(handler)

    def save(self, state: State, path: Path) -> Pending:
        super().save(state, path)
        return AsyncSave(self.checkpointer)
