"""The checkpoints of a recovery job: the shared state by a method, and each rank's own state.

The holder of slot 0 saves the whole state with the method, as scripts with data parallelism do. The
others save only the leaves that differ from rank to rank, in a small file each. A marker file says
that a checkpoint is complete, and it is written last.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.base import Method, Pending
from harness.worker.storage import resident_fraction

_KEPT = 2
_MARKER = ".complete"
_LOOK_S = 0.001

Leaves = dict[str, bytes]


@dataclass
class Checkpoints:
    """The checkpoints in one folder, the newest last."""

    folder: Path
    method: Method[Any]
    # called with the step of each checkpoint, in a thread, once it is complete
    on_complete: Callable[[int], None] = lambda step: None
    _writing: list[threading.Thread] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints in ascending order."""
        markers = self.folder.glob(f"*{_MARKER}")
        return sorted(int(marker.name.removesuffix(_MARKER)) for marker in markers)

    def save_own(self, step: int, slot: int, leaves: Leaves) -> None:
        """Write what the holder of a slot alone has."""
        folder = self._of(step)
        folder.mkdir(parents=True, exist_ok=True)
        with self._own_file(step, slot).open("wb") as file:
            # An archive of numpy takes 20 ms to load, as long as a tenth of a large checkpoint.
            pickle.dump(leaves, file)
            file.flush()
            os.fsync(file.fileno())

    def own(self, step: int, slot: int) -> Leaves:
        """Return what the holder of a slot alone had at a step."""
        with self._own_file(step, slot).open("rb") as file:
            leaves: Leaves = pickle.load(file)
        return leaves

    def save_shared(self, step: int, state: Any, on_begin: Callable[[Path], bool]) -> None:
        """Save the whole state, and mark the checkpoint as complete once it is.

        `on_begin` is given the path just before the save, and returns whether this process is to be
        killed in it. Then the checkpoint never becomes complete, however fast the save is. Return
        when the state may change. An asynchronous method goes on in the background.
        """
        path = self._of(step) / "shared" / "checkpoint"
        # A save that was killed has left a part of itself.
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir(parents=True)
        is_doomed = on_begin(path)
        pending = self.method.save(state, path)
        pending.staged()
        if is_doomed:
            return
        writer = threading.Thread(target=self._finish, args=(step, pending))
        writer.start()
        self._writing.append(writer)

    def wait(self) -> None:
        """Return when no save is in flight. Raises the error of one that failed."""
        for writer in self._writing:
            writer.join()
        self._writing.clear()
        if self._errors:
            raise self._errors[0]

    def load(self, step: int, state: Any) -> None:
        """Load the whole state of a checkpoint."""
        self.method.load(state, self._of(step) / "shared" / "checkpoint")

    def cached_share(self) -> float | None:
        """Return the share of the newest complete checkpoint's files that is in the page cache.

        None where there is no checkpoint, or where the kernel does not say.
        """
        steps = self.steps()
        if not steps:
            return None
        share = resident_fraction(self._of(steps[-1]) / "shared")
        return None if share < 0 else share

    def remove_old(self) -> None:
        """Remove all checkpoints that are older than the newest few complete ones.

        A process that was killed in a save, or here, has left a checkpoint without a marker.
        """
        kept = self.steps()[-_KEPT:]
        saved = [int(path.name) for path in self.folder.iterdir() if path.is_dir()]
        for step in saved:
            if kept and step < kept[0]:
                self._marker(step).unlink(missing_ok=True)
                shutil.rmtree(self._of(step), ignore_errors=True)

    def _finish(self, step: int, pending: Pending) -> None:
        try:
            pending.finished()
            marker = self._marker(step)
            draft = marker.with_suffix(".draft")
            draft.touch()
            draft.rename(marker)
            self.on_complete(step)
        except BaseException as error:
            self._errors.append(error)

    def _own_file(self, step: int, slot: int) -> Path:
        return self._of(step) / f"slot-{slot}.pickle"

    def _of(self, step: int) -> Path:
        return self.folder / str(step)

    def _marker(self, step: int) -> Path:
        return self.folder / f"{step}{_MARKER}"


def when_half_written(path: Path, expected_bytes: int, action: Callable[[], None]) -> None:
    """Act in a thread as soon as the files at a path hold half of the expected bytes.

    It acts in any case after a second, so that it is never left out. A method that compresses, or
    that saves into memory, may never write so many bytes.
    """

    def watch() -> None:
        deadline_s = time.monotonic() + 1.0
        while _bytes_at(path) < expected_bytes // 2 and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
        action()

    threading.Thread(target=watch, daemon=True).start()


def _bytes_at(path: Path) -> int:
    """Return the size of the files beside and below a path. One may vanish in the meantime."""
    total = 0
    # Also the search for files fails where a folder vanishes.
    with contextlib.suppress(OSError):
        for file in path.parent.rglob("*"):
            with contextlib.suppress(OSError):
                total += file.stat().st_size
    return total
