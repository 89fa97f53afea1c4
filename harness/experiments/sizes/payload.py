"""How far the bytes of a state can be compressed, whatever format they go into: a sample of each role."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from adapters.base import Leaf
from harness.experiments.sizes.records import RolePayload

SAMPLE_BYTES = 4 << 20  # of each role
_LEVEL = 6  # zlib's own default, and that of zip archives
_AT_LEAST_BYTES = 256  # of each leaf


def compressibility(leaves: Callable[[], Iterable[Leaf]]) -> tuple[RolePayload, ...]:
    """Compress a sample of each role: the same share of every leaf, from its middle.

    `leaves` is asked twice.
    """
    totals: dict[str, int] = {}
    for leaf in leaves():
        totals[str(leaf.role)] = totals.get(str(leaf.role), 0) + leaf.data.nbytes
    samples: dict[str, list[tuple[bytes, int]]] = {role: [] for role in totals}
    for leaf in leaves():
        share = min(1.0, SAMPLE_BYTES / totals[str(leaf.role)]) if leaf.data.nbytes else 0.0
        samples[str(leaf.role)].append((_middle(leaf, share), _item_bytes(leaf.dtype)))
    return tuple(_payload(role, total, samples[role]) for role, total in totals.items())


def _middle(leaf: Leaf, share: float) -> bytes:
    item = _item_bytes(leaf.dtype)
    wanted = min(leaf.data.nbytes, max(_AT_LEAST_BYTES, int(share * leaf.data.nbytes)))
    wanted -= wanted % item
    start = (leaf.data.nbytes - wanted) // 2
    start -= start % item
    return bytes(leaf.data[start : start + wanted])


def _item_bytes(dtype: str) -> int:
    """The bytes of one element, from the number of bits in the dtype's name; one where there is none (bool)."""
    bits = re.search(r"\d+$", dtype)
    return max(1, int(bits.group()) // 8) if bits else 1


def _payload(role: str, total: int, samples: list[tuple[bytes, int]]) -> RolePayload:
    return RolePayload(
        role=role,
        bytes=total,
        sampled_bytes=sum(len(sample) for sample, _ in samples),
        deflated_bytes=_deflated(sample for sample, _ in samples),
        shuffled_bytes=_deflated(_shuffled(sample, item) for sample, item in samples),
    )


def _shuffled(sample: bytes, item: int) -> bytes:
    """The first bytes of all elements, then the second ones, and so on."""
    return np.frombuffer(sample, dtype=np.uint8).reshape(-1, item).T.tobytes()


def _deflated(parts: Iterator[bytes]) -> int:
    """The size of one deflate stream over all parts."""
    packer = zlib.compressobj(_LEVEL)
    return sum(len(packer.compress(part)) for part in parts) + len(packer.flush())
