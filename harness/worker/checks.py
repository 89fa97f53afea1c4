"""Checks of a checkpoint after it was saved or loaded. Each failure is an exception of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from harness.wire.records import CacheState, FileEntry
from harness.worker import storage, usage
from harness.worker.verify import listed

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


def check_finished(
    path: Path, fingerprint: storage.Fingerprint, keeps_times: bool = True
) -> list[str]:
    """Raise LateWork if a checkpoint changed since its fingerprint was taken.

    Raise StrayFiles if files lie beside it, or elsewhere behind a symbolic link. Where the file
    system does not keep times, a file with another time alone proves nothing. Return such files.
    """
    now = storage.fingerprint(path)
    names = sorted(now.keys() | fingerprint.keys())
    changed = [name for name in names if fingerprint.get(name) != now.get(name)]
    touched = []
    if not keeps_times:
        touched = [name for name in changed if _has_same_size(now, fingerprint, name)]
        changed = [name for name in changed if name not in touched]
    if changed:
        raise LateWork(
            f"{listed(changed)} changed after finished() had returned; "
            "finished() must wait until nothing writes any more"
        )
    _check_no_stray(path)
    return touched


def _has_same_size(now: storage.Fingerprint, before: storage.Fingerprint, name: str) -> bool:
    if name not in before or name not in now:
        return False
    return before[name].size_bytes == now[name].size_bytes


def _check_no_stray(path: Path) -> None:
    """Raise StrayFiles if files lie beside a checkpoint, or elsewhere behind a symbolic link."""
    stray = sorted(entry.name for entry in path.parent.iterdir() if entry != path)
    if stray:
        raise StrayFiles(
            f"the method left {listed(stray)} beside the checkpoint; "
            "it may write at the path that it is given, and below"
        )
    outside = storage.links_outside(path)
    if outside:
        raise StrayFiles(
            f"symbolic links lead out of the checkpoint ({listed(outside)}); "
            "all of its bytes must be in it"
        )


def check_no_files(files: Sequence[FileEntry]) -> None:
    """Raise StrayFiles if a method wrote files although it declares that it has none."""
    if files:
        names = [file.name for file in files]
        raise StrayFiles(
            f"the method wrote {listed(names)}, and its adapter declares `files = false`"
        )


def check_nothing_open(path: Path) -> None:
    """Raise LateWork if this process or a child still has a file open for writing."""
    writers = storage.open_writers(path, [os.getpid(), *usage.descendants()])
    if writers:
        raise LateWork(
            f"{Path(writers[0]).name} was still open for writing after finished() had returned; "
            "finished() must close it"
        )


def check_nothing_mapped(path: Path) -> None:
    """Raise NotRead if a load left a mapping of a file, because its values are still to be read."""
    mapped = storage.mapped_files(path)
    if mapped:
        raise NotRead(
            f"{Path(mapped[0]).name} is still mapped after the load, so its values are read later, "
            "outside the clock; load() must copy them into the state"
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


def cache_state(resident: float, read_bytes: int, file_bytes: int, counted: bool) -> CacheState:
    """Return whether a load was cold.

    A cold load had no page in memory before it, and each byte came through the device. `resident`
    is the share of the checkpoint's pages that were in memory, or -1 where the kernel does not say.
    `read_bytes` came from the device, over all ranks. `counted` is false where reads from this
    directory are not accounted to the process. Then an "uncounted" load only had no page in memory.
    Raise NotRead where the values cannot have come from the files.
    """
    if resident < 0:
        return "unknown"
    if resident > _RESIDENT_AT_MOST:
        return "warm"
    if not counted:
        return "uncounted"
    if read_bytes < file_bytes // 2:
        raise NotRead(
            f"the load read {read_bytes} of the checkpoint's {file_bytes} bytes from the device, "
            "and none were cached, so its values came from somewhere else; "
            "load() must read them from the files"
        )
    return "cold" if read_bytes >= _READ_AT_LEAST * file_bytes else "warm"
