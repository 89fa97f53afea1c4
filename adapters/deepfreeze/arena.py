"""The memory that a save is copied into, in the layout of the file; made once and used again by every save."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

from adapters.deepfreeze.tensor import bytes_of
from adapters.directio import ALIGNMENT, aligned_buffer, round_up

Pin = Callable[[memoryview], None]


class Arena:
    """Private memory in huge pages. It grows when a state does."""

    folder: Path | None = None  # where it can be loaded from, if anywhere

    def __init__(self, pin: Pin | None = None) -> None:
        """`pin` is told of new memory, to make it reachable for a device's own copies."""
        self._pin = pin
        self._memory = memoryview(bytearray())

    def fit(self, file: str, size_bytes: int) -> memoryview:
        """Return memory for a file of `size_bytes`, in whole blocks of direct I/O."""
        needed_bytes = round_up(size_bytes)
        if len(self._memory) < needed_bytes:
            self._memory = memoryview(bytearray())  # the old memory goes before the new one comes
            self._memory = aligned_buffer(needed_bytes)
            bytes_of(self._memory)[::ALIGNMENT] = 0  # the first touch of a page is slow, and not to be the first save's
            if self._pin is not None:
                self._pin(self._memory)
        return self._memory[:needed_bytes]


class SharedArena(Arena):
    """Memory that is a file of a file system in memory: what it holds when the process dies, the next one can load.

    The file is as good as one on the disk, but from the beginning of a save until its header is there again.
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
            self.folder.mkdir(parents=True, exist_ok=True)
            self._memory = _mapped(self.folder / file, size_bytes)
            self._fitted = file, size_bytes
            if self._pin is not None:
                self._pin(self._memory)
        return self._memory


def _mapped(path: Path, size_bytes: int) -> memoryview:
    whole_bytes = round_up(size_bytes)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, whole_bytes)  # where memory is full, an error here instead of a signal at the first touch
        mapping = mmap.mmap(descriptor, whole_bytes)
        os.ftruncate(descriptor, size_bytes)  # the rest of the last page stays mapped
        return memoryview(mapping)
    finally:
        os.close(descriptor)
