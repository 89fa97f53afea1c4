"""moonclip, which copies the state and writes it in a thread of its own."""

from pathlib import Path

from moonclip.pytorch import CheckpointManager

from adapters.base import Method, Pending
from adapters.pytorch.state import State


class Writing(Pending):
    """A save that has copied the state already."""

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager

    def finished(self) -> None:
        self._manager.flush()


class Moonclip(Method[State]):
    """A manager for each save, because the second save of one holds only what has changed."""

    def save(self, state: State, path: Path) -> Pending:
        manager = CheckpointManager(str(path), compression_level=0)
        manager.save(state.step, extra=state.tree())
        return Writing(manager)

    def load(self, state: State, path: Path) -> None:
        manager = CheckpointManager(str(path), compression_level=0)
        _, loaded = manager.load_latest()
        state.restore({name.removeprefix("extra/"): part for name, part in loaded.items()})
