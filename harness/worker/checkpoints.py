"""The checkpoints of a job: paths for new ones, and those that a later process loads."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from harness.wire.case import Case
from harness.wire.folders import Folders
from harness.worker import storage
from harness.worker.guards import drawn_saves, stored_pages
from harness.worker.kept import Kept, read_kept, write_kept
from harness.worker.world import World


class Checkpoints:
    """The checkpoints that the ranks of a job write together.

    All ranks call `fresh`, `discard` and `keep` together.
    """

    def __init__(self, folders: Folders, world: World) -> None:
        self._folders = folders
        self._world = world
        self._unfinished: set[Path] = set()
        self._kept: dict[str, list[Kept]] = {}  # by case

    def fresh(self, name: str | None = None) -> Path:
        """Return the path for a checkpoint, in an empty folder with a name that nobody can guess.

        No two saves share a path, and no folder is ever renamed. With `name`, the folder has that
        name, for a reader of system calls who must know it.
        """
        folder = self._folders.saves / (name or self._world.agreed(secrets.token_hex(4)))
        if self._world.rank == 0:
            folder.mkdir(parents=True)
        self._world.barrier()
        path = folder / "checkpoint"
        self._unfinished.add(path)
        return path

    def discard(self, path: Path) -> None:
        """Remove a checkpoint once every rank is done with it."""
        self._world.barrier()
        self._unfinished.discard(path)
        if self._world.rank == 0:
            storage.remove_tree(path.parent)

    def hold(self, path: Path) -> None:
        """Let a checkpoint stay when the case of another one fails."""
        self._unfinished.discard(path)

    def draw(self, reservoir: drawn_saves.Reservoir, checkpoint: Kept) -> None:
        """Draw whether a checkpoint will be loaded, now that it is written. Remove another one."""
        self.hold(checkpoint.path)
        removed = reservoir.offer(checkpoint)
        if removed is not None:
            self.discard(removed.path)

    def remove_unfinished(self) -> None:
        """Remove the checkpoints of a case that failed."""
        for path in self._unfinished:
            storage.remove_tree(path.parent)
        self._unfinished.clear()

    def keep(self, case: Case, checkpoints: Sequence[Kept]) -> None:
        """List the checkpoints that a later process loads, for this rank.

        Those that were listed before and are not any more are removed.
        """
        paths = {kept.path for kept in checkpoints}
        for listed_before in self._kept.get(case.id, []):
            if listed_before.path not in paths:
                self.discard(listed_before.path)
        for kept in checkpoints:
            self.hold(kept.path)
        write_kept(self._folders.kept(case, self._world.rank), checkpoints)
        self._kept[case.id] = list(checkpoints)

    def check_kept(self, case: Case) -> None:
        """Raise ChangedPages if a checkpoint of this process is not what it was."""
        for kept in self._kept.get(case.id, []):
            _check_pages(kept, "at the end of the process")

    def kept(self, case: Case, rank: int) -> list[Kept]:
        """Return the checkpoints that an earlier process of a rank keeps for this one.

        Raise ChangedPages if one is not what it was when its save had finished.
        """
        checkpoints = read_kept(self._folders.kept(case, rank))
        for kept in checkpoints:
            _check_pages(kept, "in the process that loads")
        return checkpoints


def _check_pages(kept: Kept, seen: str) -> None:
    """Raise ChangedPages if a kept checkpoint is not what it was when its save had finished."""
    if kept.pages is not None:
        stored_pages.check_same(kept.pages, kept.path, seen)
