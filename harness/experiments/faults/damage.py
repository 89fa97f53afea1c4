"""Damages to a complete checkpoint: flipped bits, zeroed pages, cut, missing and swapped files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.durability.crashes import thinned
from harness.durability.trees import File, Link, Tree
from harness.experiments.faults.recorded_save import Part
from harness.experiments.faults.records import (
    CUT,
    DANGLING,
    FLIPPED,
    MISSING,
    SWAPPED,
    ZEROED,
)

_PAGE_BYTES = 4096
_FILES_AT_MOST = 8
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Damaged:
    """A damaged directory, the kind of damage, and the damage in words."""

    kind: str
    in_words: str
    tree: Tree


def damages(after: Tree, before: Tree, parts: Sequence[Part]) -> Iterator[Damaged]:
    """Yield the damages to the files and links of a save. Each of them changes something."""
    for damaged in _damages(after, before, parts):
        # A page may hold zeros already, and a sister file the same bytes.
        if damaged.tree != after:
            yield damaged


def _damages(after: Tree, before: Tree, parts: Sequence[Part]) -> Iterator[Damaged]:
    files = files_of(after, before)
    yield from _flipped_bits(after, parts)
    yield from _zeroed_pages(after, parts)
    for name in thinned(sorted(files), _FILES_AT_MOST):
        yield from _cut(after, name)
    for name in thinned(sorted(files), _FILES_AT_MOST):
        yield Damaged(MISSING, f"{name} missing", _without(after, name))
        yield from _swapped(after, before, files, name)
    yield from _broken_links(after, before)


def files_of(after: Tree, before: Tree) -> Mapping[str, bytes]:
    """Return the files that a save made or changed with their bytes, by their paths."""
    return {
        name: node.data
        for name, node in after.items()
        if isinstance(node, File) and before.get(name) != node
    }


def both_checkpoints(
    before: Tree, after: Tree, names: Sequence[str] = ("",)
) -> list[Mapping[str, bytes]]:
    """Return the files of the older and of the newer checkpoint, given the trees around a save.

    A file that the save changed is the store's own, such as the one with the name of the newest.
    A store without other files overwrites its checkpoint, and that is the largest file. The names
    of all files begin with one of `names`. A method may leave others beside its checkpoints.
    """
    old = _named(files_of(before, {}), names)
    new = _named(files_of(after, before), names)
    changed = old.keys() & new.keys()
    older = {name: data for name, data in old.items() if name not in changed}
    newer = {name: data for name, data in new.items() if name not in changed}
    if older or newer:
        return [files for files in (older, newer) if files]
    largest = max(changed, key=lambda name: len(new[name]))
    return [{largest: old[largest]}, {largest: new[largest]}]


def _named(files: Mapping[str, bytes], names: Sequence[str]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith(tuple(names))}


def _flipped_bits(after: Tree, parts: Sequence[Part]) -> Iterator[Damaged]:
    for part in parts:
        data = bytearray(_data(after, part.file))
        middle = (part.begin + part.end) // 2
        for bit in (0, 7):
            flipped = bytearray(data)
            flipped[middle] ^= 1 << bit
            words = f"bit {bit} of byte {middle:,} of {part.file} flipped, in its {part.name}"
            yield Damaged(f"{FLIPPED}{part.name}", words, _with(after, part.file, flipped))


def _zeroed_pages(after: Tree, parts: Sequence[Part]) -> Iterator[Damaged]:
    """Yield one damage for each part, whose page in the file is zeroed."""
    for part in parts:
        data = bytearray(_data(after, part.file))
        middle = (part.begin + part.end) // 2
        begin = middle - middle % _PAGE_BYTES
        length = min(_PAGE_BYTES, len(data) - begin)
        data[begin : begin + length] = bytes(length)
        words = f"the page at {begin:,} of {part.file} zeroed, in its {part.name}"
        yield Damaged(ZEROED, words, _with(after, part.file, data))


def _cut(after: Tree, name: str) -> Iterator[Damaged]:
    data = _data(after, name)
    lengths = {0, 1, len(data) // 2, len(data) - _PAGE_BYTES, len(data) - 1}
    for length in sorted(lengths):
        if 0 <= length < len(data):
            words = f"{name} cut to {length:,} of {len(data):,} bytes"
            if not length:
                words = f"{name} empty"
            yield Damaged(CUT, words, _with(after, name, data[:length]))


def _swapped(after: Tree, before: Tree, files: Mapping[str, bytes], name: str) -> Iterator[Damaged]:
    """Yield the file replaced by the older checkpoint's, and by a sister file of its own."""
    overwritten = before.get(name)
    if isinstance(overwritten, File):
        words = f"{name} swapped with its bytes of before the save"
        yield Damaged(SWAPPED, words, _with(after, name, overwritten.data))
    of_older = _of_older(after, before, name)
    if of_older is not None:
        words = f"{name} swapped with {of_older}"
        if of_older not in after:
            words = f"{words}, which the save has removed"
        yield Damaged(SWAPPED, words, _with(after, name, _data(before, of_older)))
    data = files[name]
    sisters = [other for other in sorted(files) if files[other] != data]
    if sisters:
        # The one of the most similar size is the hardest to tell apart.
        sister = min(sisters, key=lambda other: abs(len(files[other]) - len(data)))
        words = f"{name} swapped with {sister}"
        yield Damaged(SWAPPED, words, _with(after, name, files[sister]))


def _of_older(after: Tree, before: Tree, name: str) -> str | None:
    """Return the file of an older checkpoint that stands for this one; None where there is none.

    Stores name their checkpoints as they like, but by a number. So the names of two such files are
    equal but for numbers, and as few numbers as possible differ. The save may have removed the
    older checkpoint, and then its file is the one of before.
    """
    pattern = _NUMBER.sub("#", name)
    files = [path for path, node in before.items() if isinstance(node, File)]
    of_pattern = [path for path in sorted(files) if _NUMBER.sub("#", path) == pattern]
    candidates = [
        path
        for path in of_pattern
        if path != name and after.get(path, before[path]) == before[path]
    ]
    return max(candidates, key=lambda path: _numbers_in_common(path, name), default=None)


def _numbers_in_common(path: str, other: str) -> int:
    pairs = zip(_NUMBER.findall(path), _NUMBER.findall(other), strict=True)
    return sum(one == another for one, another in pairs)


def _broken_links(after: Tree, before: Tree) -> Iterator[Damaged]:
    """Yield each link that a save made or changed as missing, and as one that leads nowhere."""
    for name, node in sorted(after.items()):
        if isinstance(node, Link) and before.get(name) != node:
            yield Damaged(MISSING, f"the link {name} missing", _without(after, name))
            dangling = {**after, name: Link(f"{node.target}.gone")}
            yield Damaged(DANGLING, f"the link {name} dangling", dangling)


def _data(tree: Tree, name: str) -> bytes:
    node = tree[name]
    assert isinstance(node, File)
    return node.data


def _with(tree: Tree, name: str, data: bytes | bytearray) -> Tree:
    return {**tree, name: File(bytes(data))}


def _without(tree: Tree, name: str) -> Tree:
    return {path: node for path, node in tree.items() if path != name}
