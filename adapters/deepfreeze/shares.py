"""The shares of the ranks: which tensors, or which rows of them, each rank writes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adapters.deepfreeze.tensor import SAFETENSORS_TYPES, Spec

# Shares may differ by this part of a share before a tensor is divided to make them equal.
_TOLERANCE = 0.02


@dataclass(frozen=True)
class Piece:
    """A tensor as it is stored: all of it, or some of its rows.

    `skip_bytes` is the size of the rows before the first one of the piece.
    """

    name: str
    spec: Spec
    shape: tuple[int, ...]
    skip_bytes: int
    size_bytes: int

    @property
    def is_whole(self) -> bool:
        """True if the piece is all of the tensor."""
        return self.shape == self.spec.shape


def share(specs: Sequence[Spec], rank: int, world: int) -> list[Piece]:
    """Return the pieces that a rank writes: its part of the replicated tensors, and all local ones.

    Raise ValueError if a tensor cannot be stored.
    """
    for spec in specs:
        _check(spec)
    if world == 1:
        return [_whole(spec, spec.name) for spec in specs]
    replicated = [spec for spec in specs if not spec.local and spec.size_bytes]
    empty = [spec for spec in specs if not spec.local and not spec.size_bytes]
    local = [spec for spec in specs if spec.local]
    cuts = _cuts(replicated, world)
    return [
        *(_whole(spec, spec.name) for spec in empty if rank == 0),
        *_between(replicated, cuts[rank], cuts[rank + 1]),
        *(_whole(spec, local_name(spec.name, rank)) for spec in local),
    ]


def local_name(name: str, rank: int) -> str:
    """Return the name in the files of a leaf for which every rank has bytes of its own."""
    return f"{name}@rank{rank}"


def _check(spec: Spec) -> None:
    """Raise ValueError if the tensor cannot be stored."""
    if spec.dtype not in SAFETENSORS_TYPES:
        raise ValueError(
            f"tensor {spec.name} is {spec.dtype}, a type that safetensors files do not have; "
            f"convert it to one of {', '.join(SAFETENSORS_TYPES)}"
        )
    if "@" in spec.name:
        raise ValueError(
            f"tensor {spec.name} has '@' in its name, which marks ranks and rows in the files; "
            "give it another name"
        )


def _whole(spec: Spec, name: str) -> Piece:
    return Piece(name, spec, spec.shape, skip_bytes=0, size_bytes=spec.size_bytes)


def _cuts(specs: Sequence[Spec], world: int) -> list[int]:
    """Return where the ranks' shares begin and end in the sequence of the bytes of all tensors.

    The shares are equal, but end at the edge of a tensor if one is near.
    """
    stops = list(itertools.accumulate(spec.size_bytes for spec in specs))
    if not stops:
        return (world + 1) * [0]
    total_bytes = stops[-1]
    near_bytes = _TOLERANCE * total_bytes / world
    equal = [total_bytes * rank // world for rank in range(1, world)]
    return [0, *(_cut(specs, stops, offset, near_bytes) for offset in equal), total_bytes]


def _cut(specs: Sequence[Spec], stops: Sequence[int], offset: int, near_bytes: float) -> int:
    """Return the edge of a tensor near `offset`, or else the edge between two rows next to it."""
    divided = next(number for number, stop in enumerate(stops) if offset < stop)
    spec, stop = specs[divided], stops[divided]
    start = stop - spec.size_bytes
    edge = start if offset - start <= stop - offset else stop
    if abs(offset - edge) <= near_bytes or not spec.shape:
        return edge
    row_bytes = spec.size_bytes // spec.shape[0]
    return start + round((offset - start) / row_bytes) * row_bytes


def _between(specs: Sequence[Spec], first: int, last: int) -> Iterator[Piece]:
    """Yield the pieces at [first, last) in the sequence of the bytes of all tensors.

    `first` and `last` are edges of rows.
    """
    stop = 0
    for spec in specs:
        start = stop
        stop += spec.size_bytes
        if first <= start and stop <= last:
            yield _whole(spec, spec.name)
        elif start < last and first < stop:
            row_bytes = spec.size_bytes // spec.shape[0]
            first_row = (max(first, start) - start) // row_bytes
            last_row = (min(last, stop) - start) // row_bytes
            yield _rows(spec, first_row, last_row, row_bytes)


def _rows(spec: Spec, first: int, last: int, row_bytes: int) -> Piece:
    """Return the piece that has the rows [first, last) of a tensor."""
    return Piece(
        f"{spec.name}@rows{first}-{last}",
        spec,
        shape=(last - first, *spec.shape[1:]),
        skip_bytes=first * row_bytes,
        size_bytes=(last - first) * row_bytes,
    )
