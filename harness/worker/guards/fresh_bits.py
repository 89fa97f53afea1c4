"""Guard `fresh-bits`: random bits in the weights, so that a state cannot be computed again.

Without them, a checkpoint may hold nothing but the seed and the step. The bits are too small to
change how training goes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.base import Framework, Leaf, Replicated
from harness.worker.world import World
from workloads import Role

NAME = "fresh-bits"
_BATCH_BYTES = 256 << 20


class TooFewBytes(Exception):
    """A checkpoint has fewer bytes than were random in the state."""


def add_fresh_bits(framework: Framework[Any], state: Any, world: World) -> int:
    """XOR random bits into the lowest bits of the weights' mantissas.

    They are 16 of the 52 bits of a float64, 8 of the 23 bits of a float32, 4 of the 10 bits of a
    float16, and 4 of the 7 bits of a bfloat16. All ranks change a replicated leaf alike. Return how
    many random bytes the state has now, over all ranks.
    """
    seed = world.agreed(secrets.token_bytes(32))
    added_bytes = 0
    for leaves in _batches(framework, state):
        for leaf in leaves:
            _change(leaf, _seed_of(leaf, seed, world))
        framework.assign(state, {leaf.name: leaf.data for leaf in leaves})
        for leaf in leaves:
            random_bytes = _random_bytes(leaf)
            is_shared = isinstance(leaf.placement, Replicated)
            added_bytes += random_bytes if is_shared else world.total(random_bytes)
    return added_bytes


def check_holds(stored_bytes: int, fresh_bytes: int) -> None:
    """Raise TooFewBytes if a checkpoint cannot hold the bits that were added to the weights."""
    if stored_bytes < fresh_bytes:
        raise TooFewBytes(
            f"the files hold {stored_bytes} bytes, but {fresh_bytes} random bytes were put into "
            "the weights just before the save; the method must store the values in its files"
        )


def _batches(framework: Framework[Any], state: Any) -> Iterator[list[Leaf]]:
    """Yield copies of the leaves that take random bits, a limited number of bytes at a time."""
    batch: list[Leaf] = []
    size_bytes = 0
    for leaf in framework.leaves(state):
        if leaf.role is not Role.WEIGHT or leaf.dtype not in _CHANGERS:
            continue
        if batch and size_bytes + leaf.data.nbytes > _BATCH_BYTES:
            yield batch
            batch = []
            size_bytes = 0
        batch.append(_copied(leaf))
        size_bytes += leaf.data.nbytes
    if batch:
        yield batch


def _copied(leaf: Leaf) -> Leaf:
    return replace(leaf, data=memoryview(bytearray(leaf.data)))


def _seed_of(leaf: Leaf, seed: bytes, world: World) -> int:
    """Return a seed of the leaf's own, and of the rank's own where the leaf is not shared."""
    rank = "" if isinstance(leaf.placement, Replicated) else str(world.rank)
    digest = hashlib.sha256(seed + f"{rank}/{leaf.name}".encode()).digest()
    return int.from_bytes(digest)


def _change(leaf: Leaf, seed: int) -> None:
    generator = np.random.Generator(np.random.SFC64(seed))
    _CHANGERS[leaf.dtype](np.frombuffer(leaf.data, np.uint8), generator)


# The lowest byte of a word comes first, because all machines that this runs on are little-endian.
def _change_float64(data: NDArray[np.uint8], generator: np.random.Generator) -> None:
    lowest = data.view(np.uint16)[::4]
    lowest ^= np.frombuffer(generator.bytes(lowest.nbytes), np.uint16)


def _change_float32(data: NDArray[np.uint8], generator: np.random.Generator) -> None:
    lowest = data[::4]
    lowest ^= np.frombuffer(generator.bytes(len(lowest)), np.uint8)


def _change_16_bits(data: NDArray[np.uint8], generator: np.random.Generator) -> None:
    lowest = data[::2]
    lowest ^= np.frombuffer(generator.bytes(len(lowest)), np.uint8) & 0x0F


def _random_bytes(leaf: Leaf) -> int:
    """Return how many random bytes a leaf has been given: a quarter, whatever its type."""
    return leaf.data.nbytes // 4


_CHANGERS = {
    "float64": _change_float64,
    "float32": _change_float32,
    "float16": _change_16_bits,
    "bfloat16": _change_16_bits,
}
