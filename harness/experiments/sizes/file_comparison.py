"""Whether two checkpoints are the same files, and if not: where they differ, and what lies there. Standard library and numpy.

A cause is named only where the bytes show it: both files have a moment of the run in that place, or
a random identifier, or a running number, or the same content in another order: each byte as often,
and pieces of the one found again in the other. What is left is called unexplained.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.experiments.sizes.records import FileDifference
from harness.worker import storage

TIME_STAMP = "time stamp"
IDENTIFIER = "random identifier"
NUMBER = "running number"
CHECKSUM = "checksum of what differs"
ORDER = "order of the same content"
UNEXPLAINED = "unexplained"

_CHUNK_BYTES = 4 << 20
_GAP_BYTES = 8  # ranges closer than this are one
_RANGES_EXPLAINED = 64
_RANGES_KEPT = 8
_NAMES_KEPT = 8
_CONTEXT_BYTES = 64
_CLOCK_SLACK_S = 60.0
_ORDER_TOLERANCE = 0.02  # of the differing bytes: addresses and checksums change with the order

# too long to be found by chance, and short enough to lie within one entry of an index
_PIECE_BYTES = 16
_PIECES = 32
_PIECES_FOUND = 0.5  # of them: some lie across the border of what was moved

_IDENTIFIER = re.compile(rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9a-fA-F]{16,}")
_DATE = re.compile(rb"\d{4}-\d{2}-\d{2}[T@ ]?[\d:.]*")
_DIGITS = re.compile(rb"\d+")
_UNITS_PER_S = (1, 10**3, 10**6, 10**9)
_LOCAL_TIME, _LOCAL_CHECKSUM = (10, 14), (14, 18)
_CENTRAL_HEADER, _CENTRAL_TIME, _CENTRAL_CHECKSUM = 46, (12, 16), (16, 20)

Range = tuple[int, int]  # [start, stop)
Content = bytes | mmap.mmap


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; see `RepeatRecord`."""

    files: int
    renamed: int
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    differences: tuple[FileDifference, ...]

    @property
    def identical(self) -> bool:
        """Whether both checkpoints are the same files of the same bytes."""
        return not (self.renamed or self.only_first or self.only_second or self.differences)


def compare(first: Path, second: Path) -> Comparison:
    """Compare two checkpoints, each a file or a directory, file by file under the same name."""
    ours, theirs = _files(first), _files(second)
    window = _window([*ours.values(), *theirs.values()])
    differences = [
        _difference(name, ours[name], theirs[name], window)
        for name in sorted(ours.keys() & theirs.keys())
    ]
    only_ours, only_theirs = (
        sorted(ours.keys() - theirs.keys()),
        sorted(theirs.keys() - ours.keys()),
    )
    renamed = len(
        {_digest(ours[name]) for name in only_ours}
        & {_digest(theirs[name]) for name in only_theirs}
    )
    return Comparison(
        files=len(theirs),
        renamed=renamed,
        only_first=tuple(only_ours[:_NAMES_KEPT]),
        only_second=tuple(only_theirs[:_NAMES_KEPT]),
        differences=tuple(difference for difference in differences if difference is not None),
    )


def _files(path: Path) -> dict[str, Path]:
    return {storage.name_inside(file, path): file for file in storage.files_under(path)}


def _window(files: list[Path]) -> tuple[float, float]:
    """The moments, in seconds since the epoch, that a time stamp in these files can mean."""
    now = time.time()
    return min(
        (file.stat().st_mtime for file in files), default=now
    ) - _CLOCK_SLACK_S, now + _CLOCK_SLACK_S


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _difference(
    name: str, first: Path, second: Path, window: tuple[float, float]
) -> FileDifference | None:
    with _content(first) as ours, _content(second) as theirs:
        ranges, range_count, differing = _ranges(ours, theirs)
        if not range_count:
            return None
        return FileDifference(
            name=name,
            first_bytes=len(ours),
            second_bytes=len(theirs),
            differing_bytes=differing,
            range_count=range_count,
            ranges=tuple(ranges[:_RANGES_KEPT]),
            causes=_causes((first, second), (ours, theirs), ranges, differing, window),
        )


@contextmanager
def _content(file: Path) -> Iterator[Content]:
    """The file's bytes, mapped; an empty file cannot be."""
    if file.stat().st_size == 0:
        yield b""
        return
    with ExitStack() as stack:
        opened = stack.enter_context(file.open("rb"))
        yield stack.enter_context(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def _ranges(ours: Content, theirs: Content) -> tuple[list[Range], int, int]:
    """The first ranges in which the contents differ, how many there are, and how many bytes differ; a longer tail is a range."""
    found: list[Range] = []
    count = differing = 0
    common = min(len(ours), len(theirs))
    for start in range(0, common, _CHUNK_BYTES):
        stop = min(start + _CHUNK_BYTES, common)
        places = np.flatnonzero(_array(ours[start:stop]) != _array(theirs[start:stop])) + start
        differing += len(places)
        for piece in _runs(places):
            if found and piece[0] - found[-1][1] < _GAP_BYTES and count == len(found):
                found[-1] = (found[-1][0], piece[1])
                continue
            count += 1
            if len(found) < _RANGES_EXPLAINED:
                found.append(piece)
    longer = max(len(ours), len(theirs))
    if longer > common:
        found, count, differing = [*found, (common, longer)], count + 1, differing + longer - common
    return found, count, differing


def _runs(places: NDArray[np.intp]) -> list[Range]:
    if not len(places):
        return []
    breaks = np.flatnonzero(np.diff(places) > _GAP_BYTES)
    starts, stops = places[np.r_[0, breaks + 1]], places[np.r_[breaks, len(places) - 1]] + 1
    return [(int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]


def _array(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, dtype=np.uint8)


def _causes(
    files: tuple[Path, Path],
    contents: tuple[Content, Content],
    ranges: list[Range],
    differing: int,
    window: tuple[float, float],
) -> tuple[str, ...]:
    stamps, checksums = _zip_fields(files[0])
    found = {_cause(place, contents, stamps, checksums, window) for place in ranges}
    if UNEXPLAINED in found and (_same_members(*files) or _reordered(contents, ranges, differing)):
        found = (found - {UNEXPLAINED, CHECKSUM}) | {ORDER}
    return tuple(sorted(found))


def _cause(
    place: Range,
    contents: tuple[Content, Content],
    stamps: set[Range],
    checksums: set[Range],
    window: tuple[float, float],
) -> str:
    if _lies_in(place, stamps):
        return TIME_STAMP
    if _lies_in(place, checksums):
        return CHECKSUM
    texts = [_token_around(place, content, _DATE) for content in contents]
    if all(texts):
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
    return any(start <= place[0] and place[1] <= stop for start, stop in fields)


def _token_around(place: Range, content: Content, pattern: re.Pattern[bytes]) -> bytes | None:
    """The match of the pattern that covers the place, as far as the place is inside the content."""
    begin = max(0, place[0] - _CONTEXT_BYTES)
    around = content[begin : place[1] + _CONTEXT_BYTES]
    for match in pattern.finditer(around):
        if begin + match.start() <= place[0] and place[1] <= begin + match.end():
            return match.group()
    return None


def _is_binary_moment(place: Range, content: Content, window: tuple[float, float]) -> bool:
    """Whether a binary number that covers the place means a moment of the run."""
    for width, formats in ((8, "<Q >Q <d >d"), (4, "<I >I")):
        for start in range(max(0, place[1] - width), place[0] + 1):
            raw = content[start : start + width]
            if len(raw) == width and any(
                _is_moment(struct.unpack(form, raw)[0], window) for form in formats.split()
            ):
                return True
    return False


def _is_moment(value: float, window: tuple[float, float]) -> bool:
    return any(window[0] <= value / unit <= window[1] for unit in _UNITS_PER_S)


def _zip_fields(file: Path) -> tuple[set[Range], set[Range]]:
    """Where a zip archive has its time stamps and its checksums; nothing for another file."""
    if not zipfile.is_zipfile(file):
        return set(), set()
    stamps, checksums = set(), set()
    with zipfile.ZipFile(file) as archive:
        place = archive.start_dir
        for member in archive.infolist():
            for origin, stamp, checksum in (
                (member.header_offset, _LOCAL_TIME, _LOCAL_CHECKSUM),
                (place, _CENTRAL_TIME, _CENTRAL_CHECKSUM),
            ):
                stamps.add((origin + stamp[0], origin + stamp[1]))
                checksums.add((origin + checksum[0], origin + checksum[1]))
            place += (
                _CENTRAL_HEADER
                + len(member.filename.encode())
                + len(member.extra)
                + len(member.comment)
            )
    return stamps, checksums


def _same_members(first: Path, second: Path) -> bool:
    """Whether both are zip archives with the same members in another order."""
    if not (zipfile.is_zipfile(first) and zipfile.is_zipfile(second)):
        return False
    ours, theirs = (
        [(info.filename, info.CRC) for info in zipfile.ZipFile(file).infolist()]
        for file in (first, second)
    )
    return ours != theirs and sorted(ours) == sorted(theirs)


def _reordered(contents: tuple[Content, Content], ranges: list[Range], differing: int) -> bool:
    return _same_bytes(*contents, differing) and _same_pieces(*contents, ranges)


def _same_pieces(ours: Content, theirs: Content, ranges: list[Range]) -> bool:
    """Whether what differs is found elsewhere in the other content: unrelated content has each byte about as often too."""
    pieces = list(_pieces(ours, ranges))
    missing = 0
    # a piece that is not there costs a search of everything, so the first half decides
    for piece in pieces:
        missing += theirs.find(piece) < 0
        if missing > (1.0 - _PIECES_FOUND) * len(pieces):
            return False
    return bool(pieces)


def _pieces(content: Content, ranges: list[Range]) -> Iterator[bytes]:
    """Pieces at even distances of what lies in the ranges; a shorter range is a piece of its own."""
    total = sum(stop - start for start, stop in ranges)
    step = max(_PIECE_BYTES, total // _PIECES)
    for start, stop in ranges:
        for place in range(start, min(stop, len(content)), step):
            yield content[place : min(place + _PIECE_BYTES, stop)]


def _same_bytes(ours: Content, theirs: Content, differing: int) -> bool:
    """Whether the contents have each byte equally often, but for the few that change with the order."""
    return (
        int(np.abs(_histogram(ours) - _histogram(theirs)).sum()) <= 2 * _ORDER_TOLERANCE * differing
    )


def _histogram(content: Content) -> NDArray[Any]:
    parts = range(0, len(content), _CHUNK_BYTES)
    counts = [
        np.bincount(_array(content[start : start + _CHUNK_BYTES]), minlength=256) for start in parts
    ]
    return np.asarray(np.sum(counts, axis=0))
