"""Zip archives, such as npz. This needs the standard library only."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from adapters.base import Entry
from workloads import Role


def members(
    path: Path, role_of: Callable[[str], Role | None], file: str | None = None
) -> Iterator[Entry]:
    """Yield the archive's members.

    `file` is its path inside the checkpoint, if the archive is not the whole checkpoint.
    """
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            yield Entry(
                file=file or path.name,
                name=member.filename,
                role=role_of(member.filename),
                stored_bytes=member.compress_size,
                raw_bytes=member.file_size,
            )
