"""Guard `unchanged-state`: a timed save leaves the state as it is.

Else the next method would be given another state, and its checkpoint would seem to be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from adapters.base import Leaf
from harness.worker.verify import listed

NAME = "unchanged-state"
Sums = dict[str, int]


class StateChanged(Exception):
    """A save changed the state that it was to save."""


def sums(leaves: Iterable[Leaf]) -> Sums:
    """Return a sum of each leaf's words. It is fast, and no proof against intent."""
    return {leaf.name: _sum(leaf.data) for leaf in leaves}


def check_unchanged(before: Sums, after: Sums) -> None:
    """Raise StateChanged if a leaf has another sum than before."""
    changed = [name for name, value in before.items() if after.get(name) != value]
    if changed:
        raise StateChanged(f"the save changed {listed(changed)}; a save may only read the state")


def _sum(data: memoryview) -> int:
    whole_words = len(data) // 8 * 8
    words = np.frombuffer(data[:whole_words], np.uint64)
    rest = int.from_bytes(data[whole_words:], "little")
    # The sum of unsigned words wraps around.
    return (int(words.sum(dtype=np.uint64)) + rest) % 2**64
