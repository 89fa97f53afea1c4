"""Turning a written file into a visible checkpoint, in a world of one rank.

The file is written into a directory beside the target. When it is durable, the directory takes the
target's name.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from adapters.shared.directio import sync_directory

PARTIAL_SUFFIX = ".partial"


class Commit:
    """The commit of a world of one rank."""

    def __init__(self, target: Path, tag: str) -> None:
        """Take the checkpoint's path, and the name of this save, which no other save has."""
        self.target = target
        self.folder = partial_path(target, tag)

    def begin(self) -> None:
        """Make the directory to write into. Raise FileExistsError if the checkpoint exists."""
        if self.target.exists():
            raise FileExistsError(
                f"{self.target} exists already, and a checkpoint is never overwritten; choose "
                "another path or remove this one"
            )
        self.folder.mkdir(exist_ok=True)

    def finish(self, seal: str) -> None:
        """Add this rank's file, and return when the checkpoint is visible and durable.

        The file is durable already. `seal` is the digest of its header.
        """
        self._publish()

    def abandon(self) -> None:
        """Give up after an error."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _publish(self) -> None:
        """Give the directory the checkpoint's name, and make that durable."""
        sync_directory(self.folder)
        self.folder.rename(self.target)
        sync_directory(self.target.parent)


def partial_path(target: Path, tag: str) -> Path:
    """Return the directory that a checkpoint is written into before it has its name."""
    return target.parent / f".{target.name}.{tag}{PARTIAL_SUFFIX}"


def remove_partial(parent: Path, but: str) -> None:
    """Remove what killed processes have left in a directory, except that of the session `but`.

    No other job may be saving there.
    """
    for folder in parent.glob(f".*{PARTIAL_SUFFIX}"):
        if f".{but}-" not in folder.name:
            shutil.rmtree(folder)
