"""The reasons why two files of one state differ, as far as their bytes show them.

A cause is named only with evidence in both files. They have a moment of the run in that position,
or a random identifier, or a running number. Or they have the same content in another order: each
byte as often, and pieces of one found again in the other. The rest is called unexplained.
"""

from __future__ import annotations

import mmap
import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TIME_STAMP = "time stamp"
IDENTIFIER = "random identifier"
NUMBER = "running number"
CHECKSUM = "checksum of what differs"
ORDER = "order of the same content"
UNEXPLAINED = "unexplained"

_CHUNK_BYTES = 4 << 20
_CONTEXT_BYTES = 64
_ORDER_TOLERANCE = 0.02  # of the differing bytes: addresses and checksums change with the order

# A piece is too long to be found by chance, and short enough to lie within one entry of an index.
_PIECE_BYTES = 16
_PIECES = 32
_PIECES_FOUND = 0.5  # of them: some lie across the border of what was moved

_IDENTIFIER = re.compile(rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9a-fA-F]{16,}")
_DATE = re.compile(rb"\d{4}-\d{2}-\d{2}[T@ ]?[\d:.]*")
_DIGITS = re.compile(rb"\d+")
_UNITS_PER_S = (1, 10**3, 10**6, 10**9)
_FORMATS_OF_WIDTH = {8: ("<Q", ">Q", "<d", ">d"), 4: ("<I", ">I")}


class Range(NamedTuple):
    """The bytes from `start` on, up to `stop`, which is not among them."""

    start: int
    stop: int


class Window(NamedTuple):
    """The moments, in seconds since the epoch, that a time stamp in the files can mean."""

    begin_s: float
    end_s: float


# The positions in a zip archive's headers, which APPNOTE.TXT of PKWARE defines.
_LOCAL_TIME = Range(10, 14)
_LOCAL_CHECKSUM = Range(14, 18)
_CENTRAL_TIME = Range(12, 16)
_CENTRAL_CHECKSUM = Range(16, 20)
_CENTRAL_HEADER_BYTES = 46

Content = bytes | mmap.mmap


@dataclass(frozen=True)
class DifferingFiles:
    """Two files of one name, and the first ranges in which they differ."""

    files: tuple[Path, Path]
    contents: tuple[Content, Content]
    ranges: list[Range]
    differing_bytes: int
    window: Window


@dataclass(frozen=True)
class _ZipFields:
    """The positions of a zip archive's time stamps and checksums."""

    time_stamps: set[Range]
    checksums: set[Range]


def causes_of(differing: DifferingFiles) -> tuple[str, ...]:
    """Return the causes of all differences, in alphabetical order."""
    fields = _zip_fields(differing.files[0])
    causes = {
        _cause(place, differing.contents, fields, differing.window) for place in differing.ranges
    }
    if UNEXPLAINED in causes and (_same_members(*differing.files) or _is_reordered(differing)):
        causes = (causes - {UNEXPLAINED, CHECKSUM}) | {ORDER}
    return tuple(sorted(causes))


def bytes_array(content: bytes) -> NDArray[np.uint8]:
    """Return some content as an array of bytes."""
    return np.frombuffer(content, dtype=np.uint8)


def _cause(
    place: Range, contents: tuple[Content, Content], fields: _ZipFields, window: Window
) -> str:
    if _lies_in(place, fields.time_stamps):
        return TIME_STAMP
    if _lies_in(place, fields.checksums):
        return CHECKSUM
    if all(_token_around(place, content, _DATE) for content in contents):
        return TIME_STAMP
    if all(_is_binary_moment(place, content, window) for content in contents):
        return TIME_STAMP
    numbers = [_token_around(place, content, _DIGITS) for content in contents]
    if all(number and _is_moment(int(number), window) for number in numbers):
        return TIME_STAMP
    if all(_token_around(place, content, _IDENTIFIER) for content in contents):
        return IDENTIFIER
    return NUMBER if all(numbers) else UNEXPLAINED


def _lies_in(place: Range, fields: set[Range]) -> bool:
    return any(field.start <= place.start and place.stop <= field.stop for field in fields)


def _token_around(place: Range, content: Content, pattern: re.Pattern[bytes]) -> bytes | None:
    """Return the match of the pattern that covers the place, or None."""
    begin = max(0, place.start - _CONTEXT_BYTES)
    around = content[begin : place.stop + _CONTEXT_BYTES]
    for match in pattern.finditer(around):
        if begin + match.start() <= place.start and place.stop <= begin + match.end():
            return match.group()
    return None


def _is_binary_moment(place: Range, content: Content, window: Window) -> bool:
    """Return whether a binary number that covers the place means a moment of the run."""
    for width, formats in _FORMATS_OF_WIDTH.items():
        for start in range(max(0, place.stop - width), place.start + 1):
            raw = content[start : start + width]
            if len(raw) < width:
                continue
            values = [struct.unpack(form, raw)[0] for form in formats]
            if any(_is_moment(value, window) for value in values):
                return True
    return False


def _is_moment(value: float, window: Window) -> bool:
    return any(window.begin_s <= value / unit <= window.end_s for unit in _UNITS_PER_S)


def _zip_fields(file: Path) -> _ZipFields:
    """Return the positions of time stamps and checksums; none if the file is no zip archive.

    An archive has both twice for each member: before its content, and in the directory at the end.
    """
    fields = _ZipFields(set(), set())
    if not zipfile.is_zipfile(file):
        return fields
    with zipfile.ZipFile(file) as archive:
        central = archive.start_dir
        for member in archive.infolist():
            local = member.header_offset
            fields.time_stamps.add(_shifted(_LOCAL_TIME, local))
            fields.time_stamps.add(_shifted(_CENTRAL_TIME, central))
            fields.checksums.add(_shifted(_LOCAL_CHECKSUM, local))
            fields.checksums.add(_shifted(_CENTRAL_CHECKSUM, central))
            texts_bytes = len(member.filename.encode()) + len(member.extra) + len(member.comment)
            central += _CENTRAL_HEADER_BYTES + texts_bytes
    return fields


def _shifted(field: Range, origin: int) -> Range:
    return Range(origin + field.start, origin + field.stop)


def _same_members(first: Path, second: Path) -> bool:
    """Return whether both are zip archives with the same members in another order."""
    if not (zipfile.is_zipfile(first) and zipfile.is_zipfile(second)):
        return False
    first_members = _members(first)
    second_members = _members(second)
    return first_members != second_members and sorted(first_members) == sorted(second_members)


def _members(file: Path) -> list[tuple[str, int]]:
    with zipfile.ZipFile(file) as archive:
        return [(member.filename, member.CRC) for member in archive.infolist()]


def _is_reordered(differing: DifferingFiles) -> bool:
    first, second = differing.contents
    return _same_bytes(first, second, differing.differing_bytes) and _same_pieces(
        first, second, differing.ranges
    )


def _same_pieces(first: Content, second: Content, ranges: list[Range]) -> bool:
    """Return whether pieces of what differs are elsewhere in the second content.

    Equal counts of bytes are not enough, because unrelated content has each byte about as often.
    """
    pieces = list(_pieces(first, ranges))
    missing = 0
    for piece in pieces:
        missing += second.find(piece) < 0
        # A search for a missing piece goes through everything, so it ends with the first half.
        if missing > (1.0 - _PIECES_FOUND) * len(pieces):
            return False
    return bool(pieces)


def _pieces(content: Content, ranges: list[Range]) -> Iterator[bytes]:
    """Yield pieces of the ranges at even distances. A shorter range is a piece of its own."""
    total_bytes = sum(place.stop - place.start for place in ranges)
    step = max(_PIECE_BYTES, total_bytes // _PIECES)
    for place in ranges:
        for start in range(place.start, min(place.stop, len(content)), step):
            yield content[start : min(start + _PIECE_BYTES, place.stop)]


def _same_bytes(first: Content, second: Content, differing_bytes: int) -> bool:
    """Return whether the contents have each byte equally often, but for a few."""
    difference = np.abs(_histogram(first) - _histogram(second)).sum()
    # A byte that changed is missing in one histogram and too many in the other.
    return int(difference) <= 2 * _ORDER_TOLERANCE * differing_bytes


def _histogram(content: Content) -> NDArray[Any]:
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, len(content), _CHUNK_BYTES):
        chunk = content[start : start + _CHUNK_BYTES]
        counts += np.bincount(bytes_array(chunk), minlength=256)
    return counts
