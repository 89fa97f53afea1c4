"""Random gradients for a model of the user's own that comes without a step function."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

NOISE_ELEMENTS = (1 << 20) + 7
"""The random numbers that all gradients of a step repeat. Drawing one for each takes longer."""


def noise_of(step: int) -> NDArray[np.float32]:
    """Return the random numbers of a step, which are the same in every process."""
    return np.random.default_rng(step).standard_normal(NOISE_ELEMENTS, np.float32)


def gradients_like(shapes: Iterable[tuple[int, ...]], step: int) -> Iterator[NDArray[np.float32]]:
    """Yield a gradient in float32 for each shape. Every process yields the same for a step."""
    noise = noise_of(step)
    for shape in shapes:
        yield np.resize(noise, math.prod(shape)).reshape(shape)
