"""Work on files around a sample: list, flush, drop from the cache and prove it, wait for quiet."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from adapters.shared.directio import sync_directory
from harness.wire.records import FileEntry

_PAGE_BYTES = mmap.PAGESIZE
_SECTOR_BYTES = 512  # the kernel counts in these sectors on every device
# Positions of the numbers in a device's `stat` file; see the kernel's Documentation/block/stat.rst.
_READS = 0
_WRITES = 4
_SECTORS_WRITTEN = 6
_IN_FLIGHT = 8
_DISCARDS = 11

_REMOVED_OPEN = (".nfs", ".fuse_hidden")

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


class Seen(NamedTuple):
    """A file as it is at one moment."""

    size_bytes: int
    modified_ns: int


Fingerprint = dict[str, Seen]
"""The files of a checkpoint at one moment, by name."""


class _DeviceActivity(NamedTuple):
    """The requests that a block device has completed, and those in flight."""

    reads: int
    writes: int
    discards: int
    in_flight: int


def files_under(path: Path) -> list[Path]:
    """Return every regular file of a checkpoint, in name order.

    A checkpoint is a file or a directory. A symbolic link is not a file of its own. Neither is what
    NFS and FUSE keep of a removed file that is open, because it goes by itself.
    """
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if _is_file_of_its_own(file))


def _is_file_of_its_own(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and not file.name.startswith(_REMOVED_OPEN)


def name_inside(file: Path, root: Path) -> str:
    """Return a file's path inside the checkpoint `root`, or its name if it is the checkpoint."""
    return file.name if file == root else str(file.relative_to(root))


def inventory(path: Path) -> tuple[FileEntry, ...]:
    """Return the files of a checkpoint with their bytes.

    Holes are left out where the file system tells them. Of several names of one file, the first one
    has its bytes, and the others have none.
    """
    seen: set[tuple[int, int]] = set()
    entries = []
    for file in files_under(path):
        status = file.stat()
        inode = (status.st_dev, status.st_ino)
        size_bytes = 0 if inode in seen else _data_bytes(file, status.st_size)
        seen.add(inode)
        entries.append(FileEntry(name_inside(file, path), size_bytes))
    return tuple(entries)


def links_outside(path: Path) -> list[str]:
    """Return the symbolic links of a checkpoint that lead out of it, by their names inside it.

    If the checkpoint itself is a link, nothing of it is at its path.
    """
    if path.is_symlink():
        return [path.name]
    root = path.resolve()
    links = [entry for entry in path.rglob("*") if entry.is_symlink()]
    outside = [link for link in links if not link.resolve().is_relative_to(root)]
    return sorted(name_inside(link, path) for link in outside)


def has_hard_links(path: Path) -> bool:
    """Return whether a file of a checkpoint has another name, here or elsewhere."""
    return any(file.stat().st_nlink > 1 for file in files_under(path))


def total_bytes(files: Iterable[FileEntry]) -> int:
    """Return the bytes of all files together."""
    return sum(file.bytes for file in files)


def fingerprint(path: Path) -> Fingerprint:
    """Return the size and modification time of each file, which change with every write."""
    stats = {name_inside(file, path): file.stat() for file in files_under(path)}
    return {name: Seen(stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def sync_tree(path: Path) -> None:
    """Flush every file of a checkpoint, its directories and their parent.

    After this, all of the checkpoint survives a power loss.
    """
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

    Without the flush, dirty pages would stay. Mapped pages stay in any case.
    """
    sync_tree(path)
    for file in files_under(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_fraction(path: Path) -> float:
    """Return the share of a checkpoint's pages that are in memory now, by mincore.

    Return -1 where the kernel does not say.
    """
    resident = 0
    pages = 0
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

    Return whether it became still in time. Return None where there is no device that tells, as for
    network file systems and overlays.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _libc.syncfs(descriptor)
    finally:
        os.close(descriptor)
    activity = _device_activity(path)
    if activity is None:
        return None
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        time.sleep(still_s)
        before = activity
        activity = _device_activity(path)
        if activity is not None and activity == before and activity.in_flight == 0:
            return True
    return False


def device_written_bytes(path: Path) -> int | None:
    """Return the bytes that the block device below `path` has taken since it started.

    Return None where there is no device that tells.
    """
    numbers = _device_statistics(path)
    return None if numbers is None else numbers[_SECTORS_WRITTEN] * _SECTOR_BYTES


def remove_tree(path: Path) -> None:
    """Remove a checkpoint, file or directory, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def mapped_files(path: Path) -> list[str]:
    """Return the files of a checkpoint that this process still has mapped."""
    names = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6:
                names.add(fields[5].rstrip("\n"))
    root = str(path.resolve())
    return sorted(name for name in names if _is_inside(name, root))


def open_writers(path: Path, processes: list[int]) -> list[str]:
    """Return the files of a checkpoint that one of the processes has open for writing."""
    root = str(path.resolve())
    written = set()
    for process in processes:
        for descriptor, target in _descriptors(process):
            if _is_inside(target, root) and _is_writable(process, descriptor):
                written.add(target)
    return sorted(written)


def _data_bytes(file: Path, size_bytes: int) -> int:
    """Return the bytes of a file that are no hole; all of them where the file system cannot tell.

    The file has been flushed, because a file system may put off where it stores data.
    """
    data_bytes = 0
    position = 0
    descriptor = os.open(file, os.O_RDONLY)
    try:
        while position < size_bytes:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            data_bytes += position - start
    except OSError as error:
        # There is no data behind this position.
        if error.errno == errno.ENXIO:
            return data_bytes
        return size_bytes
    finally:
        os.close(descriptor)
    return data_bytes


def _is_inside(name: str, root: str) -> bool:
    return name == root or name.startswith(root + "/")


def _descriptors(process: int) -> Iterator[tuple[str, str]]:
    """Yield the open descriptors of a process, each with the name of its file."""
    folder = f"/proc/{process}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # it has ended meanwhile
        return
    for name in names:
        try:
            yield name, os.readlink(f"{folder}/{name}")
        except OSError:  # it was closed meanwhile
            continue


def _is_writable(process: int, descriptor: str) -> bool:
    try:
        with open(f"/proc/{process}/fdinfo/{descriptor}") as info:
            flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))
    except (OSError, StopIteration):
        return False
    return flags & os.O_ACCMODE != os.O_RDONLY


def _sync_file(path: Path) -> None:
    # Skip a link to nowhere, a socket, and a pipe, whose opening would wait for ever.
    if not path.is_file():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _resident_pages(file: Path, size_bytes: int) -> int | None:
    """Return how many pages of a file are in memory, or None where the kernel does not say.

    The file is mapped for that and not touched, because mapping brings no page in.
    """
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


def _device_activity(path: Path) -> _DeviceActivity | None:
    numbers = _device_statistics(path)
    if numbers is None:
        return None
    return _DeviceActivity(
        reads=numbers[_READS],
        writes=numbers[_WRITES],
        # Linux counts discards since 4.18.
        discards=numbers[_DISCARDS] if len(numbers) > _DISCARDS else 0,
        in_flight=numbers[_IN_FLIGHT],
    )


def _device_statistics(path: Path) -> list[int] | None:
    """Return the numbers of the block device below `path`, or None where there is none."""
    device = os.stat(path).st_dev
    try:
        with open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat") as stat:
            return [int(number) for number in stat.read().split()]
    except OSError:
        return None
