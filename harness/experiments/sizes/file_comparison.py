"""Comparison of two checkpoints of one state, file by file and byte by byte."""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.experiments.sizes.causes import (
    ORDER,
    UNEXPLAINED,
    Content,
    DifferingFiles,
    Range,
    Window,
    bytes_array,
    causes_of,
)
from harness.experiments.sizes.records import FileDifference
from harness.worker import storage

_CHUNK_BYTES = 4 << 20
_GAP_BYTES = 8  # ranges closer than this are one
_RANGES_EXPLAINED = 4096
_RANGES_RECORDED = 8
_NAMES_RECORDED = 8
_CLOCK_SLACK_S = 60.0


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison; see `RepeatRecord`."""

    files: int
    renamed: int
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    differences: tuple[FileDifference, ...]

    @property
    def identical(self) -> bool:
        """Return whether both checkpoints are the same files of the same bytes."""
        return not (self.renamed or self.only_first or self.only_second or self.differences)


class _Ranges(NamedTuple):
    """The first ranges in which two contents differ, and how many ranges and bytes there are."""

    first: list[Range]
    total: int
    differing_bytes: int


def compare(first: Path, second: Path) -> Comparison:
    """Compare two checkpoints, each a file or a directory. Files of one name are compared."""
    first_files = _files(first)
    second_files = _files(second)
    window = _window([*first_files.values(), *second_files.values()])
    common = sorted(first_files.keys() & second_files.keys())
    only_first = sorted(first_files.keys() - second_files.keys())
    only_second = sorted(second_files.keys() - first_files.keys())
    differences = []
    for name in common:
        difference = _difference(name, first_files[name], second_files[name], window)
        if difference is not None:
            differences.append(difference)
    first_contents = {_digest(first_files[name]) for name in only_first}
    second_contents = {_digest(second_files[name]) for name in only_second}
    return Comparison(
        files=len(second_files),
        renamed=len(first_contents & second_contents),
        only_first=tuple(only_first[:_NAMES_RECORDED]),
        only_second=tuple(only_second[:_NAMES_RECORDED]),
        differences=tuple(differences),
    )


def _files(path: Path) -> dict[str, Path]:
    return {storage.name_inside(file, path): file for file in storage.files_under(path)}


def _window(files: list[Path]) -> Window:
    """Return the time in which both checkpoints were written, with some slack."""
    now_s = time.time()
    first_written_s = min((file.stat().st_mtime for file in files), default=now_s)
    return Window(first_written_s - _CLOCK_SLACK_S, now_s + _CLOCK_SLACK_S)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _difference(name: str, first: Path, second: Path, window: Window) -> FileDifference | None:
    """Return how two files of one name differ, or None if they do not."""
    with _content(first) as first_content, _content(second) as second_content:
        ranges = _ranges(first_content, second_content)
        if not ranges.total:
            return None
        differing = DifferingFiles(
            files=(first, second),
            contents=(first_content, second_content),
            ranges=ranges.first,
            differing_bytes=ranges.differing_bytes,
            window=window,
        )
        return FileDifference(
            name=name,
            first_bytes=len(first_content),
            second_bytes=len(second_content),
            differing_bytes=ranges.differing_bytes,
            range_count=ranges.total,
            ranges=tuple(ranges.first[:_RANGES_RECORDED]),
            causes=_causes(differing, ranges),
        )


def _causes(differing: DifferingFiles, ranges: _Ranges) -> tuple[str, ...]:
    """Return the causes of the first ranges. The rest of very many is unexplained.

    Another order is a cause that the whole files show.
    """
    causes = causes_of(differing)
    if ranges.total == len(ranges.first) or {UNEXPLAINED, ORDER} & set(causes):
        return causes
    return (*causes, UNEXPLAINED)


@contextmanager
def _content(file: Path) -> Iterator[Content]:
    """Map a file's bytes. An empty file cannot be mapped, and has none."""
    if file.stat().st_size == 0:
        yield b""
        return
    with ExitStack() as stack:
        opened = stack.enter_context(file.open("rb"))
        yield stack.enter_context(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def _ranges(first: Content, second: Content) -> _Ranges:
    """Return the ranges in which two contents differ. The tail of the longer one is a range."""
    ranges: list[Range] = []
    count = 0
    differing_bytes = 0
    common_bytes = min(len(first), len(second))
    for start in range(0, common_bytes, _CHUNK_BYTES):
        stop = min(start + _CHUNK_BYTES, common_bytes)
        differs = bytes_array(first[start:stop]) != bytes_array(second[start:stop])
        positions = np.flatnonzero(differs) + start
        differing_bytes += len(positions)
        for run in _runs(positions):
            # A range may go on across the border of two chunks.
            continues_last = count == len(ranges) and _is_close(ranges, run)
            if continues_last:
                ranges[-1] = Range(ranges[-1].start, run.stop)
                continue
            count += 1
            if len(ranges) < _RANGES_EXPLAINED:
                ranges.append(run)
    longer_bytes = max(len(first), len(second))
    if longer_bytes > common_bytes:
        ranges.append(Range(common_bytes, longer_bytes))
        count += 1
        differing_bytes += longer_bytes - common_bytes
    return _Ranges(ranges, count, differing_bytes)


def _is_close(ranges: list[Range], run: Range) -> bool:
    return bool(ranges) and run.start - ranges[-1].stop < _GAP_BYTES


def _runs(positions: NDArray[np.intp]) -> list[Range]:
    """Return the ranges of ascending positions. Positions with a small gap are in one range."""
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) > _GAP_BYTES)
    starts = positions[np.r_[0, breaks + 1]]
    stops = positions[np.r_[breaks, len(positions) - 1]] + 1
    return [Range(int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]
