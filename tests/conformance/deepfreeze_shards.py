"""A checkpoint of two ranks, which the safetensors library opens in every framework."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from adapters.base import DirectIo
from adapters.deepfreeze.arena import Arena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.layout import INDEX
from adapters.deepfreeze.shares import share
from adapters.deepfreeze.tensor import Spec

WORLD = 2
SPECS = [
    Spec("weights/divided", "float32", (3000, 100)),
    Spec("weights/half", "bfloat16", (1001, 3)),
    Spec("position/step", "int32", ()),
    Spec("optimizer/none", "float32", (0, 4)),
    Spec("rng/cpu", "uint8", (5056,), local=True),
]


def save_shards(path: Path) -> dict[str, bytes]:
    """Save on two ranks, and return the bytes of every tensor in their files."""
    states = [{spec.name: _data(spec, rank) for spec in SPECS} for rank in range(WORLD)]

    def save(rank: int) -> None:
        engine = Engine(Ranks(rank, WORLD, "session"), DirectIo(False, 1 << 16, 1), {}, [Arena()])
        engine.prepare(SPECS)
        engine.save(states[rank], path, 1).finished()

    with ThreadPoolExecutor(WORLD) as pool:
        list(pool.map(save, range(WORLD)))
    pieces = [(rank, piece) for rank in range(WORLD) for piece in share(SPECS, rank, WORLD)]
    return {
        piece.name: states[rank][piece.spec.name][
            piece.skip_bytes : piece.skip_bytes + piece.size_bytes
        ].tobytes()
        for rank, piece in pieces
    }


def indexed(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name of every tensor, and the file that the index names for it."""
    for name, file in json.loads((path / INDEX).read_text())["weight_map"].items():
        yield name, path / file


def _data(spec: Spec, rank: int) -> np.ndarray:
    """Return bytes that are the same on all ranks, except for tensors of one rank.

    None of them is a float that is not a number, because that would not equal itself.
    """
    return np.random.default_rng(rank if spec.local else WORLD).integers(
        0, 64, spec.size_bytes, dtype=np.uint8
    )
