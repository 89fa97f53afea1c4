"""The state of the uninterrupted run after every step, and how far another run is from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.base import Leaf
from harness.experiments.resume.records import Divergence
from harness.worker.numbers import numbers_of
from harness.worker.verify import Mismatch, listed

_UNSIGNED_OF = {"bfloat16": "<u2", "float16": "<u2", "float32": "<u4", "float64": "<u8"}


@dataclass(frozen=True)
class StoredLeaf:
    """The position of a leaf in the file of every step."""

    name: str
    role: str
    dtype: str
    offset: int
    bytes: int


class Reference:
    """The states of the uninterrupted run: one file a step, and at the end an index of its leaves.

    The driver takes the index as the sign that the reference is complete.
    """

    def __init__(self, index: Path) -> None:
        self._index = index
        index.parent.mkdir(parents=True, exist_ok=True)

    def store(self, step: int, leaves: Iterable[Leaf]) -> None:
        """Store the state after a step."""
        self._leaves: list[StoredLeaf] = []
        with self._file(step).open("wb") as file:
            for leaf in leaves:
                stored = StoredLeaf(
                    name=leaf.name,
                    role=str(leaf.role),
                    dtype=leaf.dtype,
                    offset=file.tell(),
                    bytes=leaf.data.nbytes,
                )
                self._leaves.append(stored)
                file.write(leaf.data)

    def close(self) -> None:
        """Write the index."""
        self._index.write_text(json.dumps([asdict(leaf) for leaf in self._leaves]))

    def compare(self, step: int, leaves: Iterable[Leaf]) -> list[Divergence]:
        """Return the leaves that differ from what they were after the step, the farthest first.

        Raise Mismatch if a leaf is missing or new.
        """
        stored = {
            fields["name"]: StoredLeaf(**fields) for fields in json.loads(self._index.read_text())
        }
        content = np.memmap(self._file(step), dtype=np.uint8, mode="r")
        diverged = []
        for leaf in leaves:
            known = stored.pop(leaf.name, None)
            if known is None:
                raise Mismatch(f"a leaf appeared: {leaf.name}")
            straight = content[known.offset : known.offset + known.bytes]
            resumed = np.frombuffer(leaf.data, dtype=np.uint8)
            if not np.array_equal(resumed, straight):
                diverged.append(divergence(leaf.name, known.role, known.dtype, straight, resumed))
        if stored:
            raise Mismatch(f"leaves are missing: {listed(sorted(stored))}")
        return sorted(diverged, key=lambda leaf: -leaf.max_difference)

    def _file(self, step: int) -> Path:
        return self._index.with_suffix(f".step-{step}")


def divergence(
    name: str, role: str, dtype: str, straight: NDArray[np.uint8], resumed: NDArray[np.uint8]
) -> Divergence:
    """Return how far two values of a leaf are from each other. Both are given as bytes."""
    if len(straight) != len(resumed):
        return Divergence(name, role, max_ulp=None, max_difference=float("inf"))
    first = numbers_of(straight, dtype)
    second = numbers_of(resumed, dtype)
    # The difference of equal infinities is not a number, so equal elements are zero apart.
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(first == second, 0.0, np.abs(first - second))
    farthest = float(np.max(np.where(np.isfinite(difference), difference, np.inf)))
    return Divergence(name, role, _max_ulp(straight, resumed, dtype), farthest)


def _max_ulp(first: NDArray[np.uint8], second: NDArray[np.uint8], dtype: str) -> int | None:
    """Return the largest count of representable numbers between two elements.

    Return None where the type is not a floating point.
    """
    if "float" not in dtype:
        return None
    first_ranks = _ranks_in_type(first, dtype)
    second_ranks = _ranks_in_type(second, dtype)
    distance = np.maximum(first_ranks, second_ranks) - np.minimum(first_ranks, second_ranks)
    return int(distance.max())


def _ranks_in_type(values: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Return the position of each number among all numbers of its type, in ascending order.

    The bits of positive numbers grow with the number, and those of negative numbers fall. So the
    bits of the negative ones are inverted, and those of the others get the sign bit.
    """
    bits = np.ascontiguousarray(values).view(_UNSIGNED_OF[dtype])
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    return np.where(bits & sign, ~bits, bits | sign)
