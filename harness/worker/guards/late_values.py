"""Guard `late-values`: when `load` returns, the state holds everything.

A load that goes on in a thread would seem to be as fast as its call. Where the file system does not
count reads, nothing else would show it.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterable

from adapters.base import Leaf
from harness.worker.guards.unchanged_state import Sums, sums
from harness.worker.verify import listed

NAME = "late-values"
_LEAVES = 8


class LateValues(Exception):
    """Values of the state changed after `load` had returned."""


def sampled(leaves: Iterable[Leaf], names: Iterable[str]) -> Sums:
    """Return the sums of a few leaves, which are chosen anew each time."""
    shuffled = sorted(names, key=lambda name: secrets.randbits(64))
    return _sums_of(leaves, set(shuffled[:_LEAVES]))


def check_not_late(early: Sums, leaves: Iterable[Leaf]) -> None:
    """Raise LateValues if one of the few leaves is another than just after the load."""
    now = _sums_of(leaves, early)
    changed = [name for name, value in early.items() if now.get(name) != value]
    if changed:
        raise LateValues(
            f"{listed(changed)} changed after load() had returned; "
            "load() must wait until everything is in the state"
        )


def _sums_of(leaves: Iterable[Leaf], names: Container[str]) -> Sums:
    return sums(leaf for leaf in leaves if leaf.name in names)
