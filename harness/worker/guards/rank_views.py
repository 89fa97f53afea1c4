"""Guard `rank-views`: a leaf of which one rank's value is saved comes back as that rank's.

Some methods save what every rank has of its own, such as random generators, from one rank only. On
all ranks, each such leaf must then be what one rank had. Where one rank writes everything, it must
be the same rank for all leaves. Zeros, and halves of two ranks, are no rank's value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.worker.verify import Mismatch, listed

NAME = "rank-views"
Hashes = Mapping[str, str]
"""The hash of each leaf of which one rank's value is saved."""


def check_one_view(saved: Sequence[Hashes], loaded: Sequence[Hashes], one_writer: bool) -> None:
    """Raise Mismatch unless the leaves have one rank's value on all ranks.

    `saved` and `loaded` have the hashes of every rank. `one_writer` says that the value of all
    leaves must be the same rank's.
    """
    names = list(saved[0])
    if not names:
        return
    holders = {name: [_holders(name, rank[name], saved) for rank in loaded] for name in names}
    lost = [name for name in names if not all(holders[name])]
    if lost:
        raise Mismatch(
            f"no rank's own value came back of {listed(lost)}; a checkpoint with one rank's view "
            "must restore the value of one of the ranks"
        )
    values_differ = any(rank != saved[0] for rank in saved)
    if values_differ and list(saved) == list(loaded):
        raise Mismatch(
            "the method declares one rank's view of rank-local leaves but restored every rank's "
            "own; declare that it saves them all"
        )
    common = {name: _common(holders[name]) for name in names}
    mixed = [name for name in names if not common[name]]
    if mixed:
        raise Mismatch(
            f"the ranks got different ranks' values of {listed(mixed)}; a checkpoint with one "
            "rank's view must give all ranks the same"
        )
    if one_writer and not _common(common.values()):
        raise Mismatch(
            f"{listed(names)} came back from different ranks, but one rank writes everything"
        )


def _holders(name: str, value: str, saved: Sequence[Hashes]) -> set[int]:
    """Return the ranks that had saved this value of a leaf."""
    return {rank for rank, hashes in enumerate(saved) if hashes[name] == value}


def _common(sets: Iterable[set[int]]) -> set[int]:
    return set.intersection(*sets)
