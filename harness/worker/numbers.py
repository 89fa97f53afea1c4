"""The elements of a leaf as numbers, whatever their type."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def numbers_of(data: memoryview | NDArray[np.uint8], dtype: str) -> Numbers:
    """Return a leaf's elements from its bytes."""
    if dtype != "bfloat16":
        return np.frombuffer(data, dtype=np.dtype(dtype)).astype(np.float64)
    # A bfloat16, which numpy lacks, is the upper half of a float32.
    bits = np.frombuffer(data, dtype="<u2").astype("<u4") << 16
    return bits.view("<f4").astype(np.float64)
