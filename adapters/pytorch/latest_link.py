"""Files of torch.save under the numbers of their steps, and a symbolic link to the newest."""

from __future__ import annotations

from pathlib import Path

from adapters.base import NothingToRestore, Pending, Store
from adapters.pytorch.state import State
from adapters.pytorch.torch_save import TorchSave

LATEST = "latest"


class LatestLink(Store[State]):
    """The pattern of tutorials, in which a file and the link get their names by a rename.

    So no reader sees a file in part. But nothing is flushed before the old file is removed.
    """

    def open(self, state: State, folder: Path) -> None:
        self._folder = folder
        self._method = TorchSave(self.place, self.framework, self.options)

    def save(self, state: State, step: int) -> Pending:
        if self.place.rank == 0:
            path = self._folder / f"step-{step}.pt"
            unfinished = path.with_suffix(".tmp")
            self._method.save(state, unfinished)
            unfinished.rename(path)
            self._point_to(path)
            self._remove_old()
        return Pending()

    def restore_latest(self, state: State) -> int:
        link = self._folder / LATEST
        if not link.is_symlink():
            raise NothingToRestore(f"no link {LATEST!r} in {self._folder}")
        self._method.load(state, link)
        return _step(link.readlink())

    def _point_to(self, path: Path) -> None:
        link = self._folder / f"{LATEST}.tmp"
        # A killed process may have left one.
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        link.rename(self._folder / LATEST)

    def _remove_old(self) -> None:
        paths = sorted(self._folder.glob("step-*.pt"), key=_step)
        for path in paths[: -self.options["keep"]]:
            path.unlink()


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))
