"""Comparison of a loaded state with the saved one, leaf by leaf and bit by bit.

Never timed, and written once for all frameworks, because it needs only the contract's leaves.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from adapters.base import Coverage, Leaf, RankLocal

_NAMED_AT_MOST = 4
_PART_BYTES = 1 << 20


@dataclass(frozen=True)
class Digest:
    """The identity of one leaf's value: a hash of its bytes, and how they are to be read."""

    sha256: str
    dtype: str
    shape: tuple[int, ...]
    role: str
    bytes: int
    rank_local: bool


Digests = dict[str, Digest]
"""The digest of each leaf by its name."""


class Mismatch(Exception):
    """A leaf is not what it must be."""


@dataclass(frozen=True)
class Scope:
    """The leaves that a method covers on this rank."""

    covers: Coverage
    rank_local: bool
    world: int

    def covered(self, digest: Digest) -> bool:
        """Return whether a load must restore the leaf."""
        return digest.role in self.covers.roles and not self.one_view(digest)

    def untouched(self, digest: Digest) -> bool:
        """Return whether a load must leave the leaf as it is."""
        return digest.role not in self.covers.roles

    def one_view(self, digest: Digest) -> bool:
        """Return whether the checkpoint holds the value of only one rank, whichever that is."""
        return (
            digest.role in self.covers.roles
            and self.world > 1
            and digest.rank_local
            and not self.rank_local
        )


def digests(leaves: Iterable[Leaf]) -> Digests:
    """Return the digest of every leaf. At most one leaf's copy is alive at a time.

    Raise Mismatch if two leaves have one name.
    """
    by_name: Digests = {}
    for leaf in leaves:
        if leaf.name in by_name:
            raise Mismatch(f"two leaves are called {leaf.name}; each leaf needs a name of its own")
        by_name[leaf.name] = Digest(
            sha256=sha256(leaf.data),
            dtype=leaf.dtype,
            shape=tuple(leaf.shape),
            role=str(leaf.role),
            bytes=leaf.data.nbytes,
            rank_local=isinstance(leaf.placement, RankLocal),
        )
    return by_name


def check_all_differ(saved: Digests, target: Digests) -> None:
    """Raise Mismatch unless the target has the same leaves, each with another value.

    A load into a leaf that has the saved value already proves nothing.
    """
    _check_same_structure(saved, target)
    equal = equal_leaves(saved, target)
    if equal:
        raise Mismatch(f"cannot be verified: {listed(equal)} had the saved value before the load")


def equal_leaves(saved: Digests, target: Digests) -> list[str]:
    """Return the target's leaves that have the saved value.

    Empty leaves are left out, because they have only one value. A rank has some where there are
    more ranks than rows to shard.
    """
    return [
        name
        for name, digest in saved.items()
        if digest.bytes and name in target and target[name].sha256 == digest.sha256
    ]


def check_restored(saved: Digests, loaded: Digests, scope: Scope) -> None:
    """Raise Mismatch unless every covered leaf is the saved one and every other leaf is not."""
    _check_same_structure(saved, loaded)
    wrong = [
        name
        for name, digest in saved.items()
        if scope.covered(digest) and loaded[name].sha256 != digest.sha256
    ]
    if wrong:
        raise Mismatch(
            f"{len(wrong)} of {len(saved)} leaves differ from the saved state: {listed(wrong)}"
        )
    extra = [name for name in equal_leaves(saved, loaded) if scope.untouched(saved[name])]
    if extra:
        raise Mismatch(f"the method declares '{scope.covers}' but restored more: {listed(extra)}")


def hashes(by_name: Digests, names: Iterable[str]) -> dict[str, str]:
    """Return the hashes of the named leaves that are not empty."""
    return {name: by_name[name].sha256 for name in names if by_name[name].bytes}


def digests_to_json(by_name: Digests) -> dict[str, dict[str, Any]]:
    """Return digests as JSON values."""
    return {name: asdict(digest) for name, digest in by_name.items()}


def digests_from_json(values: Mapping[str, Mapping[str, Any]]) -> Digests:
    """Return the digests that `digests_to_json` gave."""
    return {
        name: Digest(**{**fields, "shape": tuple(fields["shape"])})
        for name, fields in values.items()
    }


def sha256(data: memoryview) -> str:
    """Return a hash of the parts' hashes, which are computed on all cores.

    Threads suffice for that, because hashlib releases the interpreter's lock.
    """
    parts = [data[start : start + _PART_BYTES] for start in range(0, len(data), _PART_BYTES)]
    if len(parts) <= 1:
        return hashlib.sha256(data).hexdigest()
    hashes = _pool().map(lambda part: hashlib.sha256(part).digest(), parts)
    return hashlib.sha256(b"".join(hashes)).hexdigest()


def listed(names: Sequence[str]) -> str:
    """Return the first few names in one text, and how many more there are."""
    shown = ", ".join(names[:_NAMED_AT_MOST])
    more = len(names) - _NAMED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown


def _check_same_structure(saved: Digests, other: Digests) -> None:
    missing = sorted(saved.keys() - other.keys())
    if missing:
        raise Mismatch(f"leaves are missing: {listed(missing)}")
    added = sorted(other.keys() - saved.keys())
    if added:
        raise Mismatch(f"leaves appeared: {listed(added)}")
    for name, digest in saved.items():
        now = other[name]
        if (now.dtype, now.shape) != (digest.dtype, digest.shape):
            raise Mismatch(
                f"{name} is {now.dtype}{list(now.shape)} "
                f"and was saved as {digest.dtype}{list(digest.shape)}"
            )


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())
