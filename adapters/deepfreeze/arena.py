"""The memory that a save is copied into, in the layout of the file; made once and used again by every save."""

from __future__ import annotations

import json
import logging
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adapters.deepfreeze.tensor import Unpin, bytes_of
from adapters.shared.directio import ALIGNMENT, aligned_buffer, round_up

_log = logging.getLogger("deepfreeze")

ORIGIN_SUFFIX = ".origin"

Pin = Callable[[memoryview], Unpin]


@dataclass(frozen=True)
class Origin:
    """Which save a memory holds, told apart from all others and the same on every rank, and of which home its checkpoint is."""

    save: str
    home: str


class Arena:
    """Private memory in huge pages. It grows when a state does."""

    folder: Path | None = None  # where it can be loaded from, if anywhere

    def __init__(self, pin: Pin | None = None) -> None:
        """`pin` makes new memory reachable for a device's own copies, and returns what takes that back."""
        self._pin = pin
        self._unpin: Unpin | None = None
        self._memory = memoryview(bytearray())

    def fit(self, file: str, size_bytes: int) -> memoryview:
        """Return memory for a file of `size_bytes`, in whole blocks of direct I/O."""
        needed_bytes = round_up(size_bytes)
        if len(self._memory) < needed_bytes:
            self.release()  # the old memory goes before the new one comes
            memory = aligned_buffer(needed_bytes)
            # the first touch of a page is slow, and not to be the first save's
            bytes_of(memory)[::ALIGNMENT] = 0
            self._make_reachable(memory)
            self._memory = memory
        return self._memory[:needed_bytes]

    def note(self, file: str, origin: Origin) -> None:
        """Say which save the memory of a file holds, before its header seals it."""

    def release(self) -> None:
        """Let go of the memory."""
        unpin, self._unpin = self._unpin, None
        if unpin is not None:
            unpin()
        self._memory = memoryview(bytearray())

    def _make_reachable(self, memory: memoryview) -> None:
        if self._pin is not None:
            self._unpin = pinned(self._pin, memory, self)


class SharedArena(Arena):
    """Memory that is a file of a file system in memory: what it holds when the process dies, the next one can load.

    The file is as good as one on the disk, but from the beginning of a save until its header is
    there again.
    """

    folder: Path

    def __init__(self, folder: Path, pin: Pin | None = None) -> None:
        """Take the folder, as a rule under /dev/shm."""
        super().__init__(pin)
        self.folder = folder
        self._fitted: tuple[str, int] | None = None

    def fit(self, file: str, size_bytes: int) -> memoryview:
        """Return the memory of the file, which keeps its content where it has the size already."""
        if self._fitted != (file, size_bytes):
            self.release()
            self.folder.mkdir(parents=True, exist_ok=True)
            memory = _mapped(self.folder / file, size_bytes)
            self._make_reachable(memory)
            self._memory, self._fitted = memory, (file, size_bytes)
        return self._memory

    def note(self, file: str, origin: Origin) -> None:
        place = (self.folder / file).with_suffix(ORIGIN_SUFFIX)
        try:
            place.write_text(json.dumps(asdict(origin)))
        except OSError:  # a full memory costs no checkpoint: it holds none then
            place.unlink(missing_ok=True)

    def release(self) -> None:
        super().release()
        self._fitted = None


def pinned(pin: Pin, memory: memoryview, owner: Any) -> Unpin:
    """Pin memory, and return what takes that back; it is taken back too when its owner is gone and has not done so.

    Memory that is pinned when it is given back stays pinned for what comes to its place, which
    cannot be pinned then. A child process gets none of it: to share its pages, the kernel would
    give them to the child and others to this process, beside the device's back.
    """
    memory.obj.madvise(mmap.MADV_DONTFORK)  # type: ignore[attr-defined]  # all of it is mapped
    unpin = weakref.finalize(owner, _let_go, pin(memory))
    unpin.atexit = False  # the device may be gone by then, and takes everything back itself
    return unpin


def _let_go(unpin: Unpin) -> None:
    try:
        unpin()
    except Exception as error:  # of a device that has failed: that is told where it costs a checkpoint, and this must not hide it
        _log.warning("memory stays pinned: %s", error)


def read_origin(file: Path) -> Origin:
    """Return which save the memory of a file holds.

    FileNotFoundError or ValueError where nobody has said so.
    """
    try:
        return Origin(**json.loads(file.with_suffix(ORIGIN_SUFFIX).read_text()))
    except TypeError as error:
        raise ValueError(str(error)) from error


def _mapped(path: Path, size_bytes: int) -> memoryview:
    whole_bytes = round_up(size_bytes)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        # where memory is full, an error here instead of a signal at the first touch
        os.posix_fallocate(descriptor, 0, whole_bytes)
        mapping = mmap.mmap(descriptor, whole_bytes)
        os.ftruncate(descriptor, size_bytes)  # the rest of the last page stays mapped
        return memoryview(mapping)
    finally:
        os.close(descriptor)
