"""HDF5 files, read with h5py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import h5py

from adapters.base import Entry
from workloads import Role


def datasets(
    path: Path,
    role_of: Callable[[str], Role | None],
    file: str | None = None,
    content: IO[bytes] | None = None,
) -> Iterator[Entry]:
    """Yield the file's datasets under their full names.

    `file` is its path inside the checkpoint, if the file is not the whole checkpoint. `content`
    has its bytes, if they lie in an archive.
    """
    entries: list[Entry] = []

    def visit(name: str, node: h5py.Group | h5py.Dataset) -> None:
        if isinstance(node, h5py.Dataset):
            entry = Entry(
                file=file or path.name,
                name=name,
                role=role_of(name),
                stored_bytes=node.id.get_storage_size(),
                raw_bytes=node.nbytes,
            )
            entries.append(entry)

    with h5py.File(content or path, "r") as opened:
        opened.visititems(visit)
    yield from entries
