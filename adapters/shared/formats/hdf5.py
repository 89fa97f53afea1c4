"""HDF5 files, by h5py."""

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

    `file` is the path inside the checkpoint, where this file is not all of it; `content` the bytes,
    where they lie in an archive.
    """
    found: list[Entry] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(
                Entry(
                    file or path.name, name, role_of(name), item.id.get_storage_size(), item.nbytes
                )
            )

    with h5py.File(content or path, "r") as opened:
        opened.visititems(visit)
    yield from found
