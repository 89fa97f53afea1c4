"""The comparison of two checkpoints, file by file, and the causes of differences."""

from __future__ import annotations

import struct
import time
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.experiments.sizes import causes as explanations
from harness.experiments.sizes import file_comparison as compare
from harness.experiments.sizes.causes import (
    CHECKSUM,
    IDENTIFIER,
    NUMBER,
    ORDER,
    TIME_STAMP,
    UNEXPLAINED,
    Window,
)
from harness.experiments.sizes.file_comparison import Comparison


def folders(tmp_path: Path, first: dict[str, bytes], second: dict[str, bytes]) -> Comparison:
    """Write two folders with these files, and compare them."""
    for name, files in (("first", first), ("second", second)):
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_bytes(content)
    return compare.compare(tmp_path / "first", tmp_path / "second")


def causes(tmp_path: Path, first: bytes, second: bytes) -> tuple[str, ...]:
    [difference] = folders(tmp_path, {"a": first}, {"a": second}).differences
    return difference.causes


def test_the_same_files_are_identical(tmp_path: Path) -> None:
    found = folders(tmp_path, {"a": b"one", "empty": b""}, {"a": b"one", "empty": b""})
    assert found.identical
    assert found.files == 2


def test_a_single_file_is_compared_under_one_name(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"same")
    (tmp_path / "y").write_bytes(b"same")
    assert compare.compare(tmp_path / "x", tmp_path / "x").identical
    assert compare.compare(tmp_path / "x", tmp_path / "y").renamed == 1


def test_a_file_that_only_one_has_is_named_and_a_renamed_one_counted(tmp_path: Path) -> None:
    found = folders(tmp_path, {"old": b"content", "gone": b"1"}, {"new": b"content", "more": b"22"})
    assert (found.only_first, found.only_second, found.renamed) == (
        ("gone", "old"),
        ("more", "new"),
        1,
    )
    assert not found.identical


def test_ranges_are_where_the_bytes_differ(tmp_path: Path) -> None:
    first = bytearray(range(256)) * 40
    second = bytearray(first)
    for place in (100, 101, 105, 5000, 9999):
        second[place] ^= 0xFF
    [difference] = folders(tmp_path, {"a": bytes(first)}, {"a": bytes(second)}).differences
    assert difference.ranges == ((100, 106), (5000, 5001), (9999, 10000)), (
        "close ones are one range"
    )
    assert (difference.differing_bytes, difference.range_count) == (5, 3)


def test_a_longer_tail_is_a_range(tmp_path: Path) -> None:
    [difference] = folders(tmp_path, {"a": b"12345678"}, {"a": b"1234567890ab"}).differences
    assert difference.ranges == ((8, 12),)
    assert (difference.first_bytes, difference.second_bytes, difference.differing_bytes) == (
        8,
        12,
        4,
    )


def test_a_range_may_cross_the_pieces_in_which_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "_CHUNK_BYTES", 16)
    first, second = bytes(64), bytes(10) + b"\1" * 20 + bytes(34)
    [difference] = folders(tmp_path, {"a": first}, {"a": second}).differences
    assert difference.ranges == ((10, 30),)
    assert difference.range_count == 1


NOW = int(time.time())


@pytest.mark.parametrize(
    "stamped",
    [
        lambda now: (b'{"saved": "2026-11-21@10:00:01"}', b'{"saved": "2026-11-21@10:00:02"}'),
        lambda now: (b'{"at_ns": %d}' % (now * 10**9), b'{"at_ns": %d}' % (now * 10**9 + 12345)),
        lambda now: tuple(
            b"\0\0\1" + struct.pack("<Q", now * 10**9 + later) + b"\7" for later in (0, 77777777)
        ),
        lambda now: (struct.pack(">I", now), struct.pack(">I", now + 3)),
        lambda now: (struct.pack("<d", now + 0.25), struct.pack("<d", now + 1.75)),
    ],
    ids=[
        "a date in text",
        "nanoseconds in text",
        "binary nanoseconds",
        "binary seconds",
        "a binary double",
    ],
)
def test_a_moment_of_the_run_is_a_time_stamp(
    tmp_path: Path, stamped: Callable[[int], tuple[bytes, bytes]]
) -> None:
    first, second = stamped(int(time.time()))  # now, not when the tests were collected
    assert causes(tmp_path, first, second) == (TIME_STAMP,)


def test_a_number_of_another_time_is_none(tmp_path: Path) -> None:
    past = NOW - 10 * 365 * 86400
    assert causes(tmp_path, b"x%d" % past, b"x%d" % (past + 1)) == (NUMBER,)


def test_an_identifier_is_recognized(tmp_path: Path) -> None:
    first, second = (
        f'{{"id": "{uuid.UUID(int=number)}"}}'.encode() for number in (2**127 + 5, 2**126 + 99)
    )
    assert causes(tmp_path, first, second) == (IDENTIFIER,)


def test_another_order_of_the_same_bytes_is_recognized(tmp_path: Path) -> None:
    parts = [np.random.default_rng(seed).bytes(1000) for seed in range(3)]
    assert causes(tmp_path, b"".join(parts), b"".join(reversed(parts))) == (ORDER,)


def test_random_content_is_no_order_of_other_random_content(tmp_path: Path) -> None:
    """Among so many bytes, each value is about as frequent in one content as in the other."""
    first, second = (np.random.default_rng(seed).bytes(1 << 20) for seed in range(2))
    assert explanations._same_bytes(first, second, 1 << 20)
    assert causes(tmp_path, first, second) == (UNEXPLAINED,)


@pytest.mark.parametrize("entry_bytes", [1 << 18, 1000, 40])
def test_another_order_of_many_bytes_is_recognized(tmp_path: Path, entry_bytes: int) -> None:
    content = np.random.default_rng(1).bytes(1 << 20)
    entries = [
        content[start : start + entry_bytes] for start in range(0, len(content), entry_bytes)
    ]
    assert causes(tmp_path, content, b"".join(reversed(entries))) == (ORDER,)


def test_a_larger_file_is_no_order_of_a_smaller_one(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(1000)
    assert causes(tmp_path, content, content + content) == (UNEXPLAINED,)


def test_other_content_is_unexplained(tmp_path: Path) -> None:
    first, second = (np.random.default_rng(seed).bytes(1000) for seed in range(2))
    assert causes(tmp_path, first, second) == (UNEXPLAINED,)


def archive(
    path: Path,
    members: dict[str, bytes],
    date: tuple[int, int, int, int, int, int],
    compressed: bool = False,
) -> None:
    with zipfile.ZipFile(
        path, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    ) as opened:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date)
            info.compress_type = opened.compression
            opened.writestr(info, content)


MEMBERS = {"weights.npy": bytes(range(200)), "momentum.npy": b"abc" * 100}


def test_the_dates_of_a_zip_archive_are_time_stamps(tmp_path: Path) -> None:
    archive(tmp_path / "x", MEMBERS, (2026, 11, 21, 10, 0, 0))
    archive(tmp_path / "y", MEMBERS, (2026, 11, 21, 10, 0, 4))
    (tmp_path / "x").rename(tmp_path / "first.zip")
    found = compare._difference("a", tmp_path / "first.zip", tmp_path / "y", Window(0.0, 1.0))
    assert found is not None
    assert found.causes == (TIME_STAMP,)
    assert found.range_count == 4, (
        "each member has its date twice: before its content and in the directory"
    )


def test_what_comes_after_many_time_stamps_is_not_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stamped(now: int) -> bytes:
        return b"".join(b"%d\n" % now + bytes(20) for _ in range(100))

    now = int(time.time())
    first, second = stamped(now) + b"\x01", stamped(now + 3) + b"\x99"
    assert causes(tmp_path, first, second) == (TIME_STAMP, UNEXPLAINED)
    monkeypatch.setattr(compare, "_RANGES_EXPLAINED", 64)
    found = compare.compare(tmp_path / "first", tmp_path / "second")
    assert found.differences[0].causes == (TIME_STAMP, UNEXPLAINED)
    assert found.differences[0].range_count == 101


def test_a_changed_member_also_changes_its_checksum(tmp_path: Path) -> None:
    archive(tmp_path / "x", {"note": b"saved %d" % NOW, **MEMBERS}, (2026, 1, 1, 0, 0, 0))
    archive(tmp_path / "y", {"note": b"saved %d" % (NOW + 9), **MEMBERS}, (2026, 1, 1, 0, 0, 0))
    found = compare._difference("a", tmp_path / "x", tmp_path / "y", Window(NOW - 60.0, NOW + 60.0))
    assert found is not None
    assert found.causes == (CHECKSUM, TIME_STAMP)


@pytest.mark.parametrize("compressed", [False, True])
def test_another_order_of_a_zip_archives_members_is_recognized(
    tmp_path: Path, compressed: bool
) -> None:
    archive(tmp_path / "x", MEMBERS, (2026, 1, 1, 0, 0, 0), compressed)
    archive(tmp_path / "y", dict(reversed(MEMBERS.items())), (2026, 1, 1, 0, 0, 0), compressed)
    found = compare._difference("a", tmp_path / "x", tmp_path / "y", Window(0.0, 1.0))
    assert found is not None
    assert ORDER in found.causes
    assert UNEXPLAINED not in found.causes
