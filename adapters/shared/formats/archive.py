"""Zip archives: npz, and what else packs arrays into one. Standard library only."""

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

    `file` is its path inside the checkpoint, where the archive is not the whole checkpoint.
    """
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            yield Entry(
                file or path.name,
                member.filename,
                role_of(member.filename),
                member.compress_size,
                member.file_size,
            )
