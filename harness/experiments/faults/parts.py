"""Finds the parts of checkpoint files: header, index, small tensor, large tensor, end.

Formats differ, so tensors are found by their bytes. What lies before, between and behind them is
the format's own. In a file that compresses, no tensor is found, and then it is one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.experiments.faults.recorded_save import Part

_FOUND_FROM_BYTES = 64  # fewer bytes may stand in a file by chance
_FILES_AT_MOST = 6
_END_BYTES = 64


@dataclass(frozen=True)
class _Found:
    begin: int
    end: int


def parts(files: Mapping[str, bytes], leaves: Iterable[bytes]) -> list[Part]:
    """Return the parts of the largest files of a checkpoint, given the bytes of its tensors."""
    searched = {data for data in leaves if len(data) >= _FOUND_FROM_BYTES}
    largest = sorted(files, key=lambda name: -len(files[name]))[:_FILES_AT_MOST]
    found: list[Part] = []
    for name in largest:
        if files[name]:
            found += _parts_of(name, files[name], searched)
    return found


def _parts_of(name: str, data: bytes, leaves: Iterable[bytes]) -> list[Part]:
    tensors = sorted(_tensors(data, leaves), key=lambda tensor: tensor.begin)
    if not tensors:
        return [Part("only part", name, 0, len(data)), _end(name, data)]
    by_size = sorted(tensors, key=lambda tensor: tensor.end - tensor.begin)
    named = [
        Part("small tensor", name, by_size[0].begin, by_size[0].end),
        Part("large tensor", name, by_size[-1].begin, by_size[-1].end),
    ]
    gaps = _gaps(tensors, len(data))
    if gaps and gaps[0].begin == 0:
        named.append(Part("header", name, gaps[0].begin, gaps[0].end))
    behind = [gap for gap in gaps if gap.begin > 0]
    if behind:
        index = max(behind, key=lambda gap: gap.end - gap.begin)
        named.append(Part("index", name, index.begin, index.end))
    return [*named, _end(name, data)]


def _end(name: str, data: bytes) -> Part:
    return Part("end", name, max(0, len(data) - _END_BYTES), len(data))


def _tensors(data: bytes, leaves: Iterable[bytes]) -> Iterable[_Found]:
    for leaf in leaves:
        begin = data.find(leaf)
        if begin >= 0:
            yield _Found(begin, begin + len(leaf))


def _gaps(tensors: Sequence[_Found], length: int) -> list[_Found]:
    """Return what lies between the tensors, which are in order, and at both ends."""
    gaps = []
    reached = 0
    for tensor in tensors:
        if tensor.begin > reached:
            gaps.append(_Found(reached, tensor.begin))
        reached = max(reached, tensor.end)
    if reached < length:
        gaps.append(_Found(reached, length))
    return gaps
