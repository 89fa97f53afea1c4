"""Direct I/O: every byte is in its place, and an error of any thread is raised."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adapters.shared import directio
from harness.driver import preflight

MIB = 1 << 20
BLOCK = directio.ALIGNMENT


@pytest.fixture
def direct(scratch: Path) -> None:
    """Skip on a file system in memory, which refuses O_DIRECT or ignores it."""
    reason = preflight.direct_io(scratch)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def path(scratch: Path) -> Iterator[Path]:
    file = scratch / "directio"
    yield file
    file.unlink(missing_ok=True)


def filled(size_bytes: int, seed: int = 1) -> memoryview:
    buffer = directio.aligned_buffer(size_bytes)
    random = np.random.default_rng(seed)
    content = np.frombuffer(buffer, dtype=np.uint8)
    content[:] = random.integers(0, 256, size_bytes, dtype=np.uint8)
    return buffer


def write(path: Path, buffer: memoryview, total: int, block: int, depth: int, direct: bool) -> None:
    descriptor = directio.open_for_write(path, direct)
    try:
        directio.write_blocks(descriptor, buffer, total, block, depth)
    finally:
        os.close(descriptor)


def read(path: Path, buffer: memoryview, total: int, block: int, depth: int, direct: bool) -> None:
    descriptor = directio.open_for_read(path, direct)
    try:
        directio.read_blocks(descriptor, buffer, total, block, depth)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize(
    ("total", "block"),
    [(MIB, 64 << 10), (MIB, MIB), (MIB + BLOCK, 64 << 10), (BLOCK, MIB), (3 * BLOCK, BLOCK)],
)
@pytest.mark.usefixtures("direct")
def test_direct_reads_return_what_direct_writes_wrote(
    path: Path, total: int, block: int, depth: int
) -> None:
    source, target = filled(total), directio.aligned_buffer(total)
    write(path, source, total, block, depth, direct=True)
    assert path.read_bytes() == source
    read(path, target, total, block, depth, direct=True)
    assert target == source


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("total", [0, 1, 4095, 4097, 100_003])
def test_odd_sizes_go_through_the_page_cache(path: Path, total: int, depth: int) -> None:
    source, target = filled(total), directio.aligned_buffer(total)
    write(path, source, total, 1000, depth, direct=False)
    assert path.read_bytes() == source
    read(path, target, total, 1000, depth, direct=False)
    assert target == source


@pytest.mark.parametrize("depth", [1, 4])
def test_a_small_buffer_is_written_again_and_again(path: Path, depth: int) -> None:
    ring = filled(4 * BLOCK)
    write(path, ring, 10 * BLOCK, BLOCK, depth, direct=False)
    assert path.read_bytes() == (bytes(ring) * 3)[: 10 * BLOCK]


@pytest.mark.parametrize("depth", [1, 4])
def test_a_small_buffer_holds_what_was_read_last(path: Path, depth: int) -> None:
    content = bytes(filled(8 * BLOCK))
    path.write_bytes(content)
    ring = directio.aligned_buffer(4 * BLOCK)
    read(path, ring, 8 * BLOCK, 4 * BLOCK, depth=1, direct=False)
    assert ring == content[4 * BLOCK :]
    read(path, ring, 4 * BLOCK, BLOCK, depth, direct=False)
    assert ring == content[: 4 * BLOCK]


@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_ring_that_is_not_a_whole_number_of_blocks_is_refused(path: Path, operation: str) -> None:
    """A block that crosses its end would be cut short, and the file would have holes."""
    path.write_bytes(bytes(4 * BLOCK))
    ring = directio.aligned_buffer(3 * BLOCK)
    move = {"write": write, "read": read}[operation]
    with pytest.raises(ValueError, match="it is not a whole number of blocks of 8192 bytes"):
        move(path, ring, 4 * BLOCK, 2 * BLOCK, 1, False)


@pytest.mark.parametrize("depth", [1, 2])
def test_writing_replaces_what_was_there(path: Path, depth: int) -> None:
    path.write_bytes(bytes(MIB))
    write(path, filled(BLOCK), BLOCK, BLOCK, depth, direct=False)
    assert path.stat().st_size == BLOCK


# Errors


@pytest.mark.parametrize("depth", [1, 4])
def test_a_file_that_ends_early_says_where(path: Path, depth: int) -> None:
    path.write_bytes(bytes(10 * BLOCK - 5))
    message = f"^the file ends at byte {10 * BLOCK - 5}, 5 bytes early$"
    with pytest.raises(EOFError, match=message):
        read(path, directio.aligned_buffer(10 * BLOCK), 10 * BLOCK, BLOCK, depth, direct=False)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_an_error_in_any_thread_is_raised(path: Path, depth: int) -> None:
    descriptor = directio.open_for_write(path, direct=False)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        directio.write_blocks(descriptor, filled(8 * BLOCK), 8 * BLOCK, BLOCK, depth)
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize("depth", [1, 4])
def test_writing_through_a_descriptor_for_reading_is_an_error(path: Path, depth: int) -> None:
    path.touch()
    descriptor = directio.open_for_read(path, direct=False)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            directio.write_blocks(descriptor, filled(BLOCK), BLOCK, BLOCK, depth)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("start", "length"), [(1, BLOCK), (0, BLOCK - 1)], ids=["address", "length"]
)
@pytest.mark.usefixtures("direct")
def test_unaligned_direct_writes_are_an_error(path: Path, start: int, length: int) -> None:
    buffer = filled(2 * BLOCK)[start : start + length]
    with pytest.raises(OSError, match="Invalid argument") as caught:
        write(path, buffer, length, BLOCK, 1, direct=True)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("open_file", [directio.open_for_read, directio.open_for_write])
def test_a_file_in_no_directory_cannot_be_opened(scratch: Path, open_file: object) -> None:
    assert callable(open_file)
    with pytest.raises(FileNotFoundError):
        open_file(scratch / "nowhere" / "file")


def test_only_directories_are_flushed_as_such(path: Path) -> None:
    directio.sync_directory(path.parent)
    path.touch()
    with pytest.raises(NotADirectoryError):
        directio.sync_directory(path)


# Memory


def address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@pytest.mark.parametrize("size", [1, 100, BLOCK, 2 * MIB, 5 * MIB + 1])
def test_a_buffer_has_its_size_is_aligned_zeroed_and_writable(size: int) -> None:
    buffer = directio.aligned_buffer(size)
    assert len(buffer) == size
    assert address(buffer) % BLOCK == 0
    assert not np.frombuffer(buffer, dtype=np.uint8).any()
    buffer[size - 1] = 255
    assert buffer[size - 1] == 255


@pytest.mark.parametrize("size", [2 * MIB, 8 * MIB, 64 * MIB])
def test_a_large_buffer_begins_where_a_huge_page_can(size: int) -> None:
    assert address(directio.aligned_buffer(size)) % directio.HUGE_PAGE_BYTES == 0


def test_an_empty_buffer_is_one() -> None:
    assert len(directio.aligned_buffer(0)) == 0


@pytest.mark.parametrize(("size", "rounded"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)])
def test_sizes_are_rounded_up(size: int, rounded: int) -> None:
    assert directio.round_up(size) == rounded


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_no_thread_is_at_work_after_an_error(error: BaseException) -> None:
    """The caller closes the file then, and its number may be that of another one next."""
    begun, ended = [], []

    def transfer(offset: int, length: int) -> None:
        begun.append(offset)
        if offset == 0:
            raise error
        time.sleep(0.01)
        ended.append(offset)

    with pytest.raises(type(error)):
        directio._run(transfer, 1000, 1, depth=4)
    assert sorted(begun) == [0, *sorted(ended)]
    assert len(begun) < 20, "the others stop after the blocks that they have"
