"""The compressibility of a state's bytes, whatever format they are stored in."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from adapters.base import Leaf
from harness.experiments.sizes.records import RolePayload

SAMPLE_BYTES = 4 << 20  # of each role
_LEVEL = 6  # zlib's own default, and that of zip archives
_AT_LEAST_BYTES = 256  # of each leaf


class _Sample(NamedTuple):
    """Some bytes of a leaf, and the bytes of one element."""

    data: bytes
    element_bytes: int


def compressibility(leaves: Callable[[], Iterable[Leaf]]) -> tuple[RolePayload, ...]:
    """Compress a sample of each role: the same share of every leaf, from its middle.

    `leaves` is called twice, because only one leaf need be in memory at a time.
    """
    totals: dict[str, int] = {}
    for leaf in leaves():
        role = str(leaf.role)
        totals[role] = totals.get(role, 0) + leaf.data.nbytes
    samples: dict[str, list[_Sample]] = {role: [] for role in totals}
    for leaf in leaves():
        role = str(leaf.role)
        share = min(1.0, SAMPLE_BYTES / totals[role]) if leaf.data.nbytes else 0.0
        samples[role].append(_middle(leaf, share))
    return tuple(_payload(role, total, samples[role]) for role, total in totals.items())


def _middle(leaf: Leaf, share: float) -> _Sample:
    """Return a share of a leaf's elements, from its middle."""
    element_bytes = _element_bytes(leaf.dtype)
    leaf_bytes = leaf.data.nbytes
    wanted = min(leaf_bytes, max(_AT_LEAST_BYTES, int(share * leaf_bytes)))
    wanted -= wanted % element_bytes
    start = (leaf_bytes - wanted) // 2
    start -= start % element_bytes
    return _Sample(bytes(leaf.data[start : start + wanted]), element_bytes)


def _element_bytes(dtype: str) -> int:
    """Return the bytes of one element, from the number of bits in the dtype's name.

    A name without a number, as bool, has elements of one byte.
    """
    bits = re.search(r"\d+$", dtype)
    return max(1, int(bits.group()) // 8) if bits else 1


def _payload(role: str, total_bytes: int, samples: list[_Sample]) -> RolePayload:
    return RolePayload(
        role=role,
        bytes=total_bytes,
        sampled_bytes=sum(len(sample.data) for sample in samples),
        deflated_bytes=_deflated_bytes(sample.data for sample in samples),
        shuffled_bytes=_deflated_bytes(_shuffled(sample) for sample in samples),
    )


def _shuffled(sample: _Sample) -> bytes:
    """Return the first bytes of all elements, then their second bytes, and so on."""
    elements = np.frombuffer(sample.data, dtype=np.uint8).reshape(-1, sample.element_bytes)
    return elements.T.tobytes()


def _deflated_bytes(parts: Iterator[bytes]) -> int:
    """Return the size of one deflate stream over all parts."""
    packer = zlib.compressobj(_LEVEL)
    return sum(len(packer.compress(part)) for part in parts) + len(packer.flush())
