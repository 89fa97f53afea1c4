"""What the worker does to files around a sample: list, flush, drop from the cache and prove it, wait for a quiet disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from adapters.shared.directio import sync_directory
from harness.wire.records import FileEntry

_PAGE_BYTES = mmap.PAGESIZE
_SECTORS_WRITTEN, _SECTOR_BYTES = 6, 512  # the kernel counts in these sectors on every device
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]

Fingerprint = dict[str, tuple[int, int]]  # file name -> (bytes, modification time in nanoseconds)


def files_under(path: Path) -> list[Path]:
    """Every regular file of a checkpoint, which is a file or a directory, in name order.

    A link is no file of its own.
    """
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def name_inside(file: Path, root: Path) -> str:
    """A file's path inside the checkpoint `root`; of a checkpoint that is a single file, its name."""
    return file.name if file == root else str(file.relative_to(root))


def inventory(path: Path) -> tuple[FileEntry, ...]:
    """The files of a checkpoint with their sizes."""
    return tuple(
        FileEntry(name_inside(file, path), file.stat().st_size) for file in files_under(path)
    )


def fingerprint(path: Path) -> Fingerprint:
    """What changes in a checkpoint when something still writes to it."""
    stats = {name_inside(file, path): file.stat() for file in files_under(path)}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def sync_tree(path: Path) -> None:
    """Flush every file of a checkpoint, its directories and their parent, so that all of it survives a power loss."""
    if path.is_dir():
        for folder, _, names in os.walk(path):
            for name in names:
                _sync_file(Path(folder, name))
            sync_directory(Path(folder))
    else:
        _sync_file(path)
    sync_directory(path.parent)


def drop_from_cache(path: Path) -> None:
    """Flush a checkpoint and ask the kernel to forget its pages.

    Dirty or mapped pages would stay: hence the flush.
    """
    sync_tree(path)
    for file in files_under(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_fraction(path: Path) -> float:
    """The share of a checkpoint's pages that the kernel holds in memory now (mincore); -1 where it does not say."""
    resident = pages = 0
    for file in files_under(path):
        size_bytes = file.stat().st_size
        if size_bytes == 0:
            continue
        count = _resident_pages(file, size_bytes)
        if count is None:
            return -1.0
        resident += count
        pages += -(-size_bytes // _PAGE_BYTES)
    return resident / pages if pages else 0.0


def wait_until_quiet(path: Path, limit_s: float = 2.0, still_s: float = 0.02) -> bool | None:
    """Flush the file system of `path` and wait until its device has been still for a moment.

    Returns whether it became still in time; None where the device does not tell (network file
    systems, overlays).
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _libc.syncfs(descriptor)
    finally:
        os.close(descriptor)
    counters = _device_counters(path)
    if counters is None:
        return None
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        time.sleep(still_s)
        before, counters = counters, _device_counters(path)
        if counters == before and counters is not None and counters[-1] == 0:
            return True
    return False


def device_written_bytes(path: Path) -> int | None:
    """How many bytes the block device below `path` has taken since it started; None where it does not tell."""
    fields = _device_statistics(path)
    return None if fields is None else fields[_SECTORS_WRITTEN] * _SECTOR_BYTES


def remove_tree(path: Path) -> None:
    """Remove a checkpoint, file or directory, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def mapped_files(path: Path) -> list[str]:
    """The files of a checkpoint that this process still has mapped."""
    prefix = str(path.resolve())
    with open("/proc/self/maps") as maps:
        names = {
            line.split(maxsplit=5)[5].rstrip("\n")
            for line in maps
            if len(line.split(maxsplit=5)) == 6
        }
    return sorted(name for name in names if name == prefix or name.startswith(prefix + "/"))


def open_writers(path: Path, processes: list[int]) -> list[str]:
    """The files of a checkpoint that one of the processes has open for writing."""
    prefix = str(path.resolve())
    found = set()
    for process in processes:
        for descriptor, target in _descriptors(process):
            if (target == prefix or target.startswith(prefix + "/")) and _is_writable(
                process, descriptor
            ):
                found.add(target)
    return sorted(found)


def _descriptors(process: int) -> Iterator[tuple[str, str]]:
    folder = f"/proc/{process}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # it ended meanwhile
        return
    for name in names:
        try:
            yield name, os.readlink(f"{folder}/{name}")
        except OSError:
            continue


def _is_writable(process: int, descriptor: str) -> bool:
    try:
        with open(f"/proc/{process}/fdinfo/{descriptor}") as info:
            flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))
    except (OSError, StopIteration):
        return False
    return flags & os.O_ACCMODE != os.O_RDONLY


def _sync_file(path: Path) -> None:
    # a link to nowhere, a socket, a pipe (whose opening would wait for ever), or nothing at all
    if not path.is_file():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _resident_pages(file: Path, size_bytes: int) -> int | None:
    """Map the file without touching it and ask mincore; mapping does not bring pages in."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        vector = ctypes.create_string_buffer(-(-size_bytes // _PAGE_BYTES))
        if _libc.mincore(address, size_bytes, vector) != 0:
            return None
        return sum(byte & 1 for byte in vector.raw)
    finally:
        _libc.munmap(address, size_bytes)


def _device_counters(path: Path) -> tuple[int, ...] | None:
    """(reads, writes, discards, requests in flight) of the block device below `path`."""
    fields = _device_statistics(path)
    return (
        None
        if fields is None
        else (fields[0], fields[4], fields[11] if len(fields) > 11 else 0, fields[8])
    )


def _device_statistics(path: Path) -> list[int] | None:
    """The numbers of the block device below `path`, in the order of the kernel's Documentation/block/stat.rst."""
    device = os.stat(path).st_dev
    try:
        with open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat") as stat:
            return [int(field) for field in stat.read().split()]
    except OSError:
        return None
