"""Whether a checkpoint holds what was saved, leaf by leaf and bit by bit.

Never timed; written once, over the contract's leaves.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from adapters.base import Coverage, Leaf, RankLocal

_NAMED_AT_MOST = 4
_PART_BYTES = 1 << 20


@dataclass(frozen=True)
class Digest:
    """What identifies one leaf's value: its bytes, and how they are to be read."""

    sha256: str
    dtype: str
    shape: tuple[int, ...]
    role: str
    bytes: int
    rank_local: bool


Digests = dict[str, Digest]


class Mismatch(Exception):
    """A leaf is not what it must be."""


@dataclass(frozen=True)
class Scope:
    """Which leaves a method covers on this rank."""

    covers: Coverage
    rank_local: bool
    world: int

    def covered(self, digest: Digest) -> bool:
        """Whether a load must restore the leaf."""
        return digest.role in self.covers.roles and not self.one_view(digest)

    def untouched(self, digest: Digest) -> bool:
        """Whether a load must not restore the leaf."""
        return digest.role not in self.covers.roles

    def one_view(self, digest: Digest) -> bool:
        """Whether the checkpoint holds one rank's value of the leaf, whichever's: that rank gets it back, the others do not."""
        return (
            digest.role in self.covers.roles
            and self.world > 1
            and digest.rank_local
            and not self.rank_local
        )


def digests(leaves: Iterable[Leaf]) -> Digests:
    """Digest every leaf; at most one leaf's copy is alive at a time."""
    found: Digests = {}
    for leaf in leaves:
        if leaf.name in found:
            raise Mismatch(f"two leaves are called {leaf.name}")
        found[leaf.name] = Digest(
            sha256=sha256(leaf.data),
            dtype=leaf.dtype,
            shape=tuple(leaf.shape),
            role=str(leaf.role),
            bytes=leaf.data.nbytes,
            rank_local=isinstance(leaf.placement, RankLocal),
        )
    return found


def check_all_differ(saved: Digests, target: Digests) -> None:
    """Raise Mismatch unless the target has the same leaves and another value in each: else a load could prove nothing."""
    _check_same_structure(saved, target)
    same = standing(saved, target)
    if same:
        raise Mismatch(f"cannot be verified: {listed(same)} had the saved value before the load")


def standing(saved: Digests, target: Digests) -> list[str]:
    """Name the target's leaves that have the saved value.

    An empty leaf, as a rank has where there are more ranks than rows to shard, has only one value
    and is none of them.
    """
    return [
        name
        for name, digest in saved.items()
        if digest.bytes and name in target and target[name].sha256 == digest.sha256
    ]


def check_restored(saved: Digests, loaded: Digests, scope: Scope) -> None:
    """Raise Mismatch unless every covered leaf is the saved one and every leaf outside the coverage is not."""
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
    untouched = {
        name: digest for name, digest in saved.items() if scope.untouched(digest) and digest.bytes
    }
    extra = [name for name, digest in untouched.items() if loaded[name].sha256 == digest.sha256]
    if extra:
        raise Mismatch(f"the method declares '{scope.covers}' but restored more: {listed(extra)}")


def own_views(saved: Digests, loaded: Digests, scope: Scope) -> dict[str, bool]:
    """Of each leaf that the checkpoint holds one rank's view of: whether this rank got its own value back."""
    return {
        name: loaded[name].sha256 == digest.sha256
        for name, digest in saved.items()
        if scope.one_view(digest)
    }


def write_digests(path: Path, found: Digests) -> None:
    """Keep digests for the process that will load."""
    path.write_text(json.dumps({name: asdict(digest) for name, digest in found.items()}))


def read_digests(path: Path) -> Digests:
    """Return what `write_digests` kept."""
    return {
        name: Digest(**(fields | {"shape": tuple(fields["shape"])}))
        for name, fields in json.loads(path.read_text()).items()
    }


def _check_same_structure(saved: Digests, other: Digests) -> None:
    missing = sorted(saved.keys() - other.keys())
    if missing:
        raise Mismatch(f"leaves are missing: {listed(missing)}")
    added = sorted(other.keys() - saved.keys())
    if added:
        raise Mismatch(f"leaves appeared: {listed(added)}")
    for name, digest in saved.items():
        found = other[name]
        if (found.dtype, found.shape) != (digest.dtype, digest.shape):
            raise Mismatch(
                f"{name} is {found.dtype}{list(found.shape)} and was saved as {digest.dtype}{list(digest.shape)}"
            )


def sha256(data: memoryview) -> str:
    """Hash the parts on all cores, then the parts' digests: hashlib lets go of the interpreter's lock."""
    parts = [data[start : start + _PART_BYTES] for start in range(0, len(data), _PART_BYTES)]
    if len(parts) <= 1:
        return hashlib.sha256(data).hexdigest()
    hashes = _pool().map(lambda part: hashlib.sha256(part).digest(), parts)
    return hashlib.sha256(b"".join(hashes)).hexdigest()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:_NAMED_AT_MOST])
    return (
        shown if len(names) <= _NAMED_AT_MOST else f"{shown} and {len(names) - _NAMED_AT_MOST} more"
    )
