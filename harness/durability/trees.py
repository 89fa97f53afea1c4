"""The files of a directory as values, so that a state can be compared, stored and written out."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SETTLES_S = 5.0
_LOOK_S = 0.01


@dataclass(frozen=True)
class File:
    """A file and its bytes."""

    data: bytes


@dataclass(frozen=True)
class Link:
    """A symbolic link and its text."""

    target: str


@dataclass(frozen=True)
class Folder:
    """A directory. What is in it has paths of its own."""


Node = File | Link | Folder
Tree = Mapping[str, Node]
"""All names below a directory, by their paths relative to it. A directory is there by itself."""


def read(directory: Path) -> Tree:
    """Read everything below a directory. Raises OSError where that fails.

    Pipes and sockets are left out. They hold nothing, and reading a pipe may never end.
    """
    tree: dict[str, File | Link | Folder] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            tree[name] = Link(os.readlink(path))
        elif path.is_dir():
            tree[name] = Folder()
        elif path.is_file():
            tree[name] = File(path.read_bytes())
    return tree


def read_settled(directory: Path) -> Tree:
    """Read everything below a directory that threads of a failed save may still work in.

    Return a reading that the next one confirms, or the last of some seconds. Raises OSError where
    reading fails.
    """
    deadline_s = time.monotonic() + _SETTLES_S
    before: Tree | None = None
    while True:
        is_late = time.monotonic() > deadline_s
        try:
            found = read(directory)
        except FileNotFoundError:
            # A file went between its listing and its reading.
            if is_late:
                raise
            time.sleep(_LOOK_S)
            continue
        if found == before or is_late:
            return found
        before = found
        time.sleep(_LOOK_S)


def write(tree: Tree, directory: Path) -> None:
    """Make a directory hold a tree and nothing else. Raises OSError where that fails."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    fill(tree, directory)


def fill(tree: Tree, directory: Path) -> None:
    """Write a tree into an empty directory. Raises OSError where that fails."""
    # A directory comes before what is in it, because its path is shorter.
    for name in sorted(tree):
        path = directory / name
        node = tree[name]
        if isinstance(node, Folder):
            path.mkdir()
        elif isinstance(node, Link):
            path.symlink_to(node.target)
        else:
            path.write_bytes(node.data)


def digest(tree: Tree) -> str:
    """Return a hash of all names and bytes."""
    whole = hashlib.sha256()
    for name in sorted(tree):
        node = tree[name]
        if isinstance(node, File):
            content = hashlib.sha256(node.data).hexdigest()
        else:
            content = node.target if isinstance(node, Link) else ""
        whole.update(f"{type(node).__name__}\0{name}\0{content}\0".encode(errors="surrogateescape"))
    return whole.hexdigest()


def difference(expected: Tree, found: Tree) -> str | None:
    """Return in words the first thing in which two trees differ; None where they are equal."""
    for name in sorted({*expected, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} should not be there"
        if expected[name] != found[name]:
            return f"{name} {_in_which_way(expected[name], found[name])}"
    return None


def _in_which_way(expected: File | Link | Folder, found: File | Link | Folder) -> str:
    if not isinstance(expected, File) or not isinstance(found, File):
        return "is another kind of file or another link"
    if len(expected.data) != len(found.data):
        return f"has {len(found.data):,} bytes instead of {len(expected.data):,}"
    pairs = enumerate(zip(expected.data, found.data, strict=True))
    position = next(index for index, (one, other) in pairs if one != other)
    return f"has another byte at {position:,}"
