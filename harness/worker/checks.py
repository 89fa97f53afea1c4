"""Checks of a checkpoint after it was saved or loaded, each an exception with its reason."""

from __future__ import annotations

import os
from pathlib import Path

from harness.wire.records import CacheState
from harness.worker import storage, usage

_RESIDENT_AT_MOST = 0.001
_READ_AT_LEAST = 0.99
_READAHEAD_BYTES = 128 << 10  # Linux's default: a look at a header may read so much


class LateWork(Exception):
    """Something still worked on the checkpoint after `finished` had returned."""


class StrayFiles(Exception):
    """A method left files beside the path it was given."""


class NotRead(Exception):
    """A load gave the right values without reading its files."""


class NotFromMemory(Exception):
    """A load that declares to restore from memory read the files."""


def check_finished(path: Path, written: storage.Fingerprint) -> None:
    """Raise when a checkpoint changed after `finished`, or when files lie beside it."""
    changed = [
        name for name, seen in storage.fingerprint(path).items() if written.get(name) != seen
    ]
    if changed:
        raise LateWork(f"{', '.join(changed[:4])} changed after finished() had returned")
    stray = [entry.name for entry in path.parent.iterdir() if entry != path]
    if stray:
        raise StrayFiles(f"the method left {', '.join(sorted(stray)[:4])} beside the checkpoint")


def check_nothing_open(path: Path) -> None:
    """Raise when a file of the checkpoint is still open for writing, here or in a child process."""
    writers = storage.open_writers(path, [os.getpid(), *usage.descendants()])
    if writers:
        raise LateWork(
            f"{Path(writers[0]).name} was still open for writing after finished() had returned"
        )


def check_nothing_mapped(path: Path) -> None:
    """Raise when a load left a mapping of a checkpoint file: its values are then still to be read."""
    mapped = storage.mapped_files(path)
    if mapped:
        raise NotRead(
            f"{Path(mapped[0]).name} is still mapped after the load: values are read later, outside the clock"
        )


def check_from_memory(read_bytes: int, file_bytes: int, looks: int) -> None:
    """Raise where a load that declares to restore from memory read its files; `looks` of them may have been at a header."""
    if read_bytes > max(file_bytes // 2, looks * _READAHEAD_BYTES):
        raise NotFromMemory(
            f"the load read {read_bytes} of the checkpoint's {file_bytes} bytes from the device: not from memory"
        )


def cache_state(resident: float, read_bytes: int, file_bytes: int, counted: bool) -> CacheState:
    """Say whether a load was cold: no page in memory before it, and every byte through the device during it.

    `read_bytes` are the device's, of all ranks; `counted` whether this directory's device reads are
    accounted at all. Raises NotRead where the values cannot have come from the files.
    """
    if resident < 0 or not counted:
        return "unknown"
    if resident > _RESIDENT_AT_MOST:
        return "warm"
    if read_bytes < file_bytes // 2:
        raise NotRead(
            f"the load read {read_bytes} of the checkpoint's {file_bytes} bytes from the device, and none were cached: "
            "its values came from somewhere else"
        )
    return "cold" if read_bytes >= _READ_AT_LEAST * file_bytes else "warm"
