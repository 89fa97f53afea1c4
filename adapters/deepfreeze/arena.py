"""The memory that a save is copied into, in the layout of the file.

It is made once, and every save uses it again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adapters.deepfreeze.errors import Damaged
from adapters.deepfreeze.header import StoredFile
from adapters.deepfreeze.tensor import Unpin, bytes_of
from adapters.shared.directio import ALIGNMENT, aligned_buffer, give_back, round_up

_log = logging.getLogger("deepfreeze")

ORIGIN_SUFFIX = ".origin"

Pin = Callable[[memoryview], Unpin]


@dataclass(frozen=True)
class Origin:
    """The save that a memory holds.

    `save` names it: the same on every rank, and different from all other saves. `home` names the
    directory of the store that the checkpoint was meant for, or is empty.
    """

    save: str
    home: str


class Arena:
    """Private memory in huge pages. It grows when a state does."""

    def __init__(self, pin: Pin | None = None) -> None:
        """`pin` makes new memory accessible to a device, and returns a function that undoes it."""
        self._pin = pin
        self._unpin: Unpin | None = None
        self._memory = memoryview(bytearray())

    def fit(self, file: str, size_bytes: int) -> memoryview:
        """Return memory for a file of `size_bytes`, in whole blocks of direct I/O."""
        needed_bytes = round_up(size_bytes)
        if len(self._memory) < needed_bytes:
            # The old memory is freed before the new one is taken.
            self.release()
            memory = aligned_buffer(needed_bytes)
            # The first touch of a page is slow. It must not happen in the first save.
            bytes_of(memory)[::ALIGNMENT] = 0
            self._make_accessible(memory)
            self._memory = memory
        return self._memory[:needed_bytes]

    def note(self, file: str, origin: Origin) -> None:
        """Note which save the memory of a file holds, before its header seals it."""

    def release(self) -> None:
        """Free the memory."""
        unpin = self._unpin
        self._unpin = None
        if unpin is not None:
            unpin()
        memory = self._memory
        self._memory = memoryview(bytearray())
        if memory:
            give_back(memory)

    def _make_accessible(self, memory: memoryview) -> None:
        """Make the memory accessible to the device, if there is one."""
        if self._pin is not None:
            self._unpin = pinned(self._pin, memory, self)


class SharedArena(Arena):
    """Memory that is a file in a file system in memory.

    When the process dies, the next one can load from it. The file is as complete as one on the
    disk, except from the begin of a save until its header is written again.
    """

    folder: Path

    def __init__(self, folder: Path, pin: Pin | None = None) -> None:
        """Take the folder for the files, usually one under /dev/shm."""
        super().__init__(pin)
        self.folder = folder
        self._fitted: tuple[str, int] | None = None

    def fit(self, file: str, size_bytes: int) -> memoryview:
        """Return the memory of the file. It keeps its content if it has the size already."""
        if self._fitted != (file, size_bytes):
            self.release()
            self.folder.mkdir(parents=True, exist_ok=True)
            memory = _mapped(self.folder / file, size_bytes)
            # The first look at a page is slow. It must not happen in the first save or load.
            bytes_of(memory)[::ALIGNMENT].max(initial=0)
            self._make_accessible(memory)
            self._memory = memory
            self._fitted = (file, size_bytes)
        return self._memory

    def look_at(self, file: StoredFile) -> memoryview:
        """Return the memory of a file in the folder. Any rank may have made the file.

        Raise FileNotFoundError if it is gone, and Damaged if it was cut off meanwhile.
        """
        # Somebody may have put another file there since this memory was made.
        if self._memory[: len(file.header)] == file.header:
            return self._memory
        with file.path.open("rb") as opened:
            try:
                # The mapping lives as long as a view of it. An error may keep one.
                mapping = mmap.mmap(opened.fileno(), file.size_bytes, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise Damaged(
                    f"{file.path} was cut off while it was loaded; load another checkpoint"
                ) from error
        return memoryview(mapping)

    def note(self, file: str, origin: Origin) -> None:
        origin_file = (self.folder / file).with_suffix(ORIGIN_SUFFIX)
        try:
            origin_file.write_text(json.dumps(asdict(origin)))
        except OSError:
            # A full memory must not cost the checkpoint on the disk. The memory counts as empty.
            origin_file.unlink(missing_ok=True)

    def release(self) -> None:
        super().release()
        self._fitted = None


def pinned(pin: Pin, memory: memoryview, owner: Any) -> Unpin:
    """Pin memory and return the function that unpins it, which also runs when `owner` is gone.

    Memory that is still pinned when it is freed stays pinned for whatever takes its addresses
    next, and that cannot be pinned then. A child process does not get the memory. Otherwise the
    kernel would leave the pages to the child and give this process new ones, and the device would
    not learn of it.
    """
    # `obj` is the mapping below the view, which the type of a view does not say.
    memory.obj.madvise(mmap.MADV_DONTFORK)  # type: ignore[attr-defined]
    unpin = weakref.finalize(owner, _try_to_unpin, pin(memory))
    # At the end of the process the device may be gone, and it takes everything back itself.
    unpin.atexit = False
    return unpin


def _try_to_unpin(unpin: Unpin) -> None:
    """Unpin, but only log an error.

    The device has failed then. The call that lost a checkpoint raises that, and an error in here
    would hide it.
    """
    try:
        unpin()
    except Exception as error:
        _log.warning("memory stays pinned, because the device could not unpin it: %s", error)


def read_origin(file: Path) -> Origin:
    """Return which save the memory of a file holds.

    Raise FileNotFoundError or ValueError if that was not noted.
    """
    content = json.loads(file.with_suffix(ORIGIN_SUFFIX).read_text())
    try:
        return Origin(**content)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _mapped(path: Path, size_bytes: int) -> memoryview:
    """Return the memory of a file of `size_bytes`, in whole pages."""
    whole_bytes = round_up(size_bytes)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        with _alone_with(descriptor):
            # If memory is full, this raises an error. Otherwise the first touch would be a signal.
            os.posix_fallocate(descriptor, 0, whole_bytes)
            mapping = mmap.mmap(descriptor, whole_bytes)
            # The rest of the last page stays mapped.
            os.ftruncate(descriptor, size_bytes)
        return memoryview(mapping)
    finally:
        os.close(descriptor)


@contextmanager
def _alone_with(descriptor: int) -> Iterator[None]:
    """Let other processes that take the same file at the same size wait for this one.

    Otherwise one of them would cut the file off that another is about to map.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        # The mapping has a copy of the descriptor, which would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
