"""A model of a file system that holds bytes: what is there now, and what a power loss leaves.

A directory and a file each have two versions. One is what programs see. The other is what is safe
on the disk. POSIX promises no more than this. A flush of a file makes its bytes safe and not its
name. A flush of a directory makes the names in it safe and not the bytes behind them.

Instants are lines of the log, as in `calls.Call`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from harness.durability import trees
from harness.durability.calls import BEFORE_LOG, UnreadableError
from harness.durability.trees import Tree


@dataclass(eq=False)
class FileNode:
    """A file. `safe` are the bytes of its last flush, and it has kept the first `kept` of them."""

    data: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    kept: int = 0
    changed_at: int = BEFORE_LOG

    @property
    def is_safe(self) -> bool:
        """Return whether a power loss leaves the bytes as they are.

        A file that was cut is not safe, also where the same bytes were written again.
        """
        return self.kept == len(self.safe) and self.safe == self.data

    def write(self, offset: int, payload: bytes, at: int) -> None:
        """Write bytes. A gap before them is filled with zeros."""
        _put(self.data, offset, payload)
        self.changed_at = at

    def write_safely(self, offset: int, payload: bytes, at: int) -> None:
        """Write bytes that are safe when the call returns. Others of the file need not be."""
        self.write(offset, payload, at)
        # Such a write takes a truncation before it to the disk, too.
        safe = bytearray(self.safe[: self.kept])
        _put(safe, offset, payload)
        self.safe = bytes(safe)
        self.kept = len(self.safe)

    def resize(self, length: int, at: int) -> None:
        """Cut the file, or fill it with zeros."""
        del self.data[length:]
        self.data.extend(bytes(length - len(self.data)))
        self.kept = min(self.kept, length)
        self.changed_at = at

    def flush(self, entered_at: int) -> None:
        """Make the bytes safe, unless they changed after the flush was entered."""
        if self.changed_at < entered_at:
            self.safe = bytes(self.data)
            self.kept = len(self.safe)


@dataclass(eq=False)
class LinkNode:
    """A symbolic link. It is safe as soon as its name is."""

    target: str


@dataclass(eq=False)
class FolderNode:
    """A directory. `safe` are the names of its last flush."""

    names: dict[str, Node] = field(default_factory=dict)
    safe: dict[str, Node] = field(default_factory=dict)
    changed_at: dict[str, int] = field(default_factory=dict)

    def put(self, name: str, node: Node, at: int) -> None:
        """Give a node a name here."""
        self.names[name] = node
        self.changed_at[name] = at

    def remove(self, name: str, at: int) -> None:
        """Take a name away."""
        self.names.pop(name, None)
        self.changed_at[name] = at

    def unsafe_names(self) -> list[str]:
        """Return the names of which a power loss may leave an older version."""
        every = {*self.names, *self.safe}
        return sorted(name for name in every if self.names.get(name) is not self.safe.get(name))

    def flush(self, entered_at: int) -> None:
        """Make the names safe that did not change after the flush was entered."""
        for name in self.unsafe_names():
            if self.changed_at.get(name, BEFORE_LOG) < entered_at:
                _set(self.safe, name, self.names.get(name))


Node = FileNode | LinkNode | FolderNode

Rest = Literal["cut", "zeros"]
"""The bytes that a power loss leaves of an unflushed file.

"cut" leaves what was flushed. "zeros" leaves a file of the new length with zeros in it, because
some file systems store a file's length before its bytes. A file that was emptied and written again
then has no old bytes any more.
"""


@dataclass(frozen=True)
class Loss:
    """The things that a power loss takes.

    `names` are directories and names in them, and `files` are files whose unflushed bytes go.
    """

    names: frozenset[tuple[FolderNode, str]] = frozenset()
    files: frozenset[FileNode] = frozenset()
    rest: Rest = "cut"


NOTHING = Loss()


class Volume:
    """A file system after the calls applied so far.

    Directories outside of `root` are assumed to be there.
    """

    def __init__(self, root: str) -> None:
        """Start with an empty directory `root`."""
        self.root = root
        self._top = FolderNode()
        self.folder(root)

    # Lookup

    def find(self, path: str) -> Node | None:
        """Return what is at an absolute path; None where nothing is known to be there."""
        node: Node | None = self._top
        for part in _parts(path):
            if not isinstance(node, FolderNode):
                return None
            node = node.names.get(part)
        return node

    def folder(self, path: str) -> FolderNode:
        """Return the directory at a path. One outside of the root is made if it is unknown.

        Raises UnreadableError where the log did not show it being made.
        """
        node = self._top
        reached = ""
        for part in _parts(path):
            reached += f"/{part}"
            below = node.names.get(part)
            if not isinstance(below, FolderNode) and not self.is_inside(reached):
                below = FolderNode()
                node.names[part] = below
                node.safe[part] = below
            if isinstance(below, LinkNode):
                shown = self.shown(reached)
                raise UnreadableError(f"names behind the symbolic link {shown} are not followed")
            if not isinstance(below, FolderNode):
                shown = self.shown(reached)
                raise UnreadableError(f"the log does not show how the directory {shown} was made")
            node = below
        return node

    def parent(self, path: str) -> tuple[FolderNode, str]:
        """Return the directory that a path is in, and its name there."""
        above, name = os.path.split(path)
        return self.folder(above), name

    def is_inside(self, path: str) -> bool:
        """Return whether a path is below the root."""
        return path.startswith(self.root + os.sep)

    def shown(self, path: str) -> str:
        """Return a path as a sentence names it: relative to the root."""
        shown = os.path.relpath(path, self.root)
        return "the directory of the checkpoints" if shown == "." else shown

    def name_of(self, node: Node | None) -> str | None:
        """Return a path of a node, relative to the root; None where it has no name below it."""
        walked = self._walk(self.folder(self.root), "")
        return next((path for path, other in walked if other is node), None)

    # What is there, and what a power loss leaves

    def adopt(self, tree: Tree) -> None:
        """Let the root hold a tree, all of it safe. A file that is there stays the same file."""
        before = dict(self._walk(self.folder(self.root), ""))
        root = self.folder(self.root)
        root.names.clear()
        root.safe.clear()
        for path in sorted(tree):
            node = _adopted(before.get(path), tree[path])
            folder, name = self.parent(f"{self.root}/{path}")
            folder.names[name] = node
            folder.safe[name] = node

    def tree(self, loss: Loss = NOTHING) -> Tree:
        """Return what is below the root after a loss."""
        found: dict[str, trees.File | trees.Link | trees.Folder] = {}
        _collect(self.folder(self.root), "", loss, found)
        return found

    def losses(self) -> list[tuple[str, Loss]]:
        """Return each single name and each single file that a power loss can take, in words.

        The bytes of a file can be cut off, or be zeros.
        """
        single = []
        for folder, path, name in self._unsafe_names():
            loss = Loss(names=frozenset({(folder, name)}))
            single.append((f"the change of the name {path} lost", loss))
        for path, file in self._unsafe_files():
            cut, zeros = (Loss(files=frozenset({file}), rest=rest) for rest in ("cut", "zeros"))
            single.append((f"the unflushed bytes of {path} lost", cut))
            if _left(file, zeros) != _left(file, cut):
                single.append((f"the unflushed bytes of {path} zeros", zeros))
        return single

    def everything(self, rest: Rest) -> Loss:
        """Return the loss of all that is not flushed."""
        names: set[tuple[FolderNode, str]] = set()
        files: set[FileNode] = set()
        # A directory may come back whose removal is lost, and with it the names that were in it.
        for node in _reachable(self.folder(self.root)):
            if isinstance(node, FolderNode):
                names |= {(node, name) for name in node.unsafe_names()}
            elif isinstance(node, FileNode) and not node.is_safe:
                files.add(node)
        return Loss(frozenset(names), frozenset(files), rest)

    def all_bytes(self, rest: Rest) -> Loss:
        """Return the loss of all unflushed bytes, and of no name."""
        return replace(self.everything(rest), names=frozenset())

    def _unsafe_names(self) -> Iterator[tuple[FolderNode, str, str]]:
        """Yield each unsafe name with its directory and its path."""
        root = self.folder(self.root)
        folders = [("", root)]
        for path, node in self._walk(root, ""):
            if isinstance(node, FolderNode):
                folders.append((f"{path}/", node))
        for prefix, folder in folders:
            for name in folder.unsafe_names():
                yield folder, prefix + name, name

    def _unsafe_files(self) -> Iterator[tuple[str, FileNode]]:
        """Yield each file that a power loss may leave with other bytes, by one of its paths."""
        seen = set()
        for path, node in self._walk(self.folder(self.root), ""):
            if isinstance(node, FileNode) and node not in seen and not node.is_safe:
                seen.add(node)
                yield path, node

    def _walk(self, folder: FolderNode, prefix: str) -> Iterator[tuple[str, Node]]:
        for name, node in sorted(folder.names.items()):
            yield prefix + name, node
            if isinstance(node, FolderNode):
                yield from self._walk(node, f"{prefix}{name}/")

    def flush_everything(self, entered_at: int) -> None:
        """Make all names and all bytes safe, as sync does."""
        for node in _reachable(self._top):
            if not isinstance(node, LinkNode):
                node.flush(entered_at)


def _adopted(before: Node | None, node: trees.File | trees.Link | trees.Folder) -> Node:
    if isinstance(node, trees.Folder):
        return FolderNode()
    if isinstance(node, trees.Link):
        return LinkNode(node.target)
    file = before if isinstance(before, FileNode) else FileNode()
    file.data = bytearray(node.data)
    file.safe = node.data
    file.kept = len(node.data)
    return file


def _collect(
    folder: FolderNode,
    prefix: str,
    loss: Loss,
    found: dict[str, trees.File | trees.Link | trees.Folder],
) -> None:
    """Add what is in a directory after a loss."""
    names = dict(folder.names)
    for name in folder.unsafe_names():
        if (folder, name) in loss.names:
            _set(names, name, folder.safe.get(name))
    for name, node in names.items():
        path = prefix + name
        if isinstance(node, FolderNode):
            found[path] = trees.Folder()
            _collect(node, f"{path}/", loss, found)
        elif isinstance(node, LinkNode):
            found[path] = trees.Link(node.target)
        else:
            found[path] = trees.File(_left(node, loss))


def _left(file: FileNode, loss: Loss) -> bytes:
    """Return the bytes of a file after a loss."""
    if file not in loss.files:
        return bytes(file.data)
    if loss.rest == "cut":
        return file.safe
    length = len(file.data)
    return file.safe[: min(length, file.kept)].ljust(length, b"\0")


def _reachable(top: FolderNode) -> list[Node]:
    """Return all nodes, also those that only the safe version of a directory has."""
    found: dict[int, Node] = {}
    waiting: list[Node] = [top]
    while waiting:
        node = waiting.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        if isinstance(node, FolderNode):
            waiting += [*node.names.values(), *node.safe.values()]
    return list(found.values())


def _parts(path: str) -> list[str]:
    return list(Path(path).parts[1:])


def _put(data: bytearray, offset: int, payload: bytes) -> None:
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(payload)] = payload


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    """Set a name, or remove it where there is no node."""
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
