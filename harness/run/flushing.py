"""Writes that a power loss leaves whole, because files are flushed together with their names."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

_FLUSHES_NO_FOLDER = {errno.EACCES, errno.EINVAL, errno.ENOTSUP}


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it that are missing. Raises FileExistsError if it is there.

    Its name is safe afterwards.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True)
    for made in missing:
        flush_folder(made.parent)


def write_file(file: Path, text: str) -> None:
    """Give a file a new content. After a kill or a power loss it has the old or the new one."""
    unfinished = file.with_name(f"{file.name}.tmp")
    with unfinished.open("w", encoding="utf-8") as writer:
        writer.write(text)
        writer.flush()
        os.fsync(writer.fileno())
    unfinished.replace(file)
    flush_folder(file.parent)


def make_empty_file(file: Path) -> None:
    """Make an empty file whose name is safe."""
    file.touch()
    flush_folder(file.parent)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder safe, where its file system can flush a folder."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, descriptor)
            os.fsync(descriptor)
        except OSError as error:
            # Some network file systems refuse, and a parent may be closed to readers.
            if error.errno not in _FLUSHES_NO_FOLDER:
                raise
