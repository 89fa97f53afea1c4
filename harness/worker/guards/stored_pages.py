"""Guard `stored-pages`: after `finished`, nobody completes a checkpoint any more.

A thread, a detached process or a destructor that still writes, and then sets the old time of the
file, would make a save seem to be faster than it is. Some pages of each file are looked at when the
save has finished, when its process ends, and in the process that loads. Times, inodes and blocks
are no proof, because delayed allocation and network file systems change them.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.worker import storage
from harness.worker.verify import listed

NAME = "stored-pages"
_PAGES = 64
_PAGE_BYTES = 4096


class ChangedPages(Exception):
    """A checkpoint is not what it was when its save had finished."""


@dataclass(frozen=True)
class Page:
    """One page of a file by its hash. The page is shorter than others at the end of a file."""

    file: str
    offset_bytes: int
    digest: str


@dataclass(frozen=True)
class StoredPages:
    """Some pages of a checkpoint, and the sizes of all of its files in bytes."""

    sizes: Mapping[str, int]
    pages: Sequence[Page]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StoredPages:
        """Return what `asdict` gave."""
        return cls(values["sizes"], [Page(**page) for page in values["pages"]])


def sampled(path: Path) -> StoredPages:
    """Return random pages of a checkpoint, and the last page of each of its files."""
    files = {storage.name_inside(file, path): file for file in storage.files_under(path)}
    sizes = {name: file.stat().st_size for name, file in files.items()}
    places = {(name, _last_page(size)) for name, size in sizes.items() if size}
    all_pages = sum(_count(size) for size in sizes.values())
    # Seeded by the operating system, so that no method can tell which pages are looked at.
    chooser = random.Random(secrets.randbits(64))
    chosen = sorted(chooser.sample(range(all_pages), min(_PAGES, all_pages)))
    places |= set(_places_of(chosen, sizes))
    pages = [Page(name, offset, _digest(files[name], offset)) for name, offset in sorted(places)]
    return StoredPages(sizes, pages)


def check_same(stored: StoredPages, path: Path, seen: str) -> None:
    """Raise ChangedPages if a page or a file is another than when the save had finished.

    `seen` says when the pages are looked at again.
    """
    files = {storage.name_inside(file, path): file for file in storage.files_under(path)}
    if list(files) != list(stored.sizes):
        changed = sorted(set(files) ^ set(stored.sizes))
        _raise(f"{listed(changed)} came or went", seen)
    resized = [name for name, file in files.items() if file.stat().st_size != stored.sizes[name]]
    if resized:
        _raise(f"{listed(resized)} had another size", seen)
    for page in stored.pages:
        if _digest(files[page.file], page.offset_bytes) != page.digest:
            _raise(f"{page.file} had other bytes at {page.offset_bytes}", seen)


def _raise(changed: str, seen: str) -> None:
    raise ChangedPages(
        f"{changed} {seen} than when finished() had returned; "
        "finished() must wait until the checkpoint is complete"
    )


def _count(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES)


def _last_page(size_bytes: int) -> int:
    return (size_bytes - 1) // _PAGE_BYTES * _PAGE_BYTES


def _places_of(numbers: Sequence[int], sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the file and offset of pages that are counted through all files."""
    places = []
    first = 0
    for name, size_bytes in sizes.items():
        after = first + _count(size_bytes)
        for number in numbers:
            if first <= number < after:
                places.append((name, (number - first) * _PAGE_BYTES))
        first = after
    return places


def _digest(file: Path, offset_bytes: int) -> str:
    with file.open("rb") as stream:
        stream.seek(offset_bytes)
        return hashlib.blake2b(stream.read(_PAGE_BYTES), digest_size=16).hexdigest()
