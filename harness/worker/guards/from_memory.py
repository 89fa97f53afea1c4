"""Guard `from-memory`: a method restores from memory, or has no files, where it declares that.

Its loads would otherwise stand beside those of memory although they are reads of a warm or a cold
file. Direct reads that only some loads of a process make are not noticed.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.wire.records import FileEntry
from harness.worker.verify import listed

NAME = "from-memory"
_READAHEAD_BYTES = 128 << 10  # Linux's default: a look at a header may read so much


class UndeclaredFiles(Exception):
    """A method wrote files although it declares that it has none."""


class NotFromMemory(Exception):
    """A load that declares to restore from memory read the files."""


def check_no_files(files: Sequence[FileEntry]) -> None:
    """Raise UndeclaredFiles if a method wrote files although it declares that it has none."""
    if files:
        names = [file.name for file in files]
        raise UndeclaredFiles(
            f"the method wrote {listed(names)}, and its adapter declares `files = false`"
        )


def check_from_memory(read_bytes: int, file_bytes: int, looks: int) -> None:
    """Raise NotFromMemory if a load that declares to restore from memory read its files.

    The ranks may have looked at headers `looks` times, and each look may read ahead.
    """
    if read_bytes > max(file_bytes // 2, looks * _READAHEAD_BYTES):
        raise NotFromMemory(
            f"the load read {read_bytes} of the checkpoint's {file_bytes} bytes from its files, "
            "not from memory; a method that declares to restore from memory must not read its files"
        )
