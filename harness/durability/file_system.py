"""A model of the file system: which contents and which names a power loss cannot take.

POSIX promises no more than the model grants. fsync of a file makes its contents safe but not its
name. fsync of a directory makes the names in it safe but not the files' contents. Where the log
leaves a choice, the model takes the pessimistic one.

Instants are lines of the log, as in `calls.Call`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from harness.durability.calls import BEFORE_LOG, FOREVER, Descriptor

Change = Literal["created", "written", "truncated", "resized", "mapped for writing"]
Origin = Literal["creation", "rename", "link"]


@dataclass(eq=False)
class Inode:
    """The contents of a file, or a directory apart from the names in it."""

    # the instant at which its last change became safe, or None if that has not happened
    safe_since: int | None
    last_change: Change = "created"
    changed_at: int = BEFORE_LOG
    was_ever_flushed: bool = False
    # Bytes that write() changed lie anywhere in the file, so only a flush of all of it covers them.
    has_unflushed_writes: bool = False
    is_directory: bool = False
    links: int = 0


@dataclass(eq=False)
class Name:
    """An entry of a directory."""

    inode: Inode
    origin: Origin
    given_at: int
    # the instant at which the entry became safe, or None if that has not happened
    safe_since: int | None


@dataclass(eq=False)
class Mapping:
    """A writable shared mapping of a file, through which a process can write unseen at any time."""

    pid: int
    path: str
    inode: Inode
    address: int
    length_bytes: int
    offset_bytes: int
    # msync has flushed it. Stores after that are assumed not to happen.
    is_synced: bool = False


@dataclass(frozen=True)
class Unflushed:
    """The contents of files and the names that a power loss can take.

    The paths are relative to the directory that the question was about.
    """

    contents: dict[str, Inode] = field(default_factory=dict)
    names: dict[str, Name] = field(default_factory=dict)


class FileSystem:
    """The files that the log has shown so far, with all their names.

    Files that the log names and did not see being made are old, so they are safe.
    """

    def __init__(self) -> None:
        self.names: dict[str, Name] = {}
        self.mappings: list[Mapping] = []
        # Inodes whose descriptors show a path that is no longer theirs: files made with O_TMPFILE,
        # and files that were unlinked by one of several names.
        self._by_former_path: dict[str, Inode] = {}

    def unflushed(self, directory: str, by: int = FOREVER) -> Unflushed:
        """Return what below a directory was not safe yet at the instant `by`.

        The question is about the files as they are now, after the calls applied so far. Without
        `by`, the answer is what a power loss can take now.
        """
        unflushed = Unflushed()
        for path, name in self.names_below(directory).items():
            if not _is_safe(name.safe_since, by):
                unflushed.names[path] = name
            if not name.inode.is_directory and not _is_safe(name.inode.safe_since, by):
                unflushed.contents[path] = name.inode
        return unflushed

    # Lookup

    def names_below(self, directory: str) -> dict[str, Name]:
        """Return all names below a directory, by their path relative to it."""
        prefix = directory + os.sep
        return {
            path.removeprefix(prefix): name
            for path, name in self.names.items()
            if path.startswith(prefix)
        }

    def inode_at(self, path: str) -> Inode:
        """Return the file at an absolute path. A file unknown so far is old and safe."""
        if path not in self.names:
            name = self.add_name(path, Inode(safe_since=BEFORE_LOG), "creation", BEFORE_LOG)
            name.safe_since = BEFORE_LOG
        return self.names[path].inode

    def inode_of(self, descriptor: Descriptor) -> Inode | None:
        """Return the file of a descriptor, or None if it cannot be part of a checkpoint.

        That is so for pipes and sockets, and for files that have lost their last name.
        """
        if descriptor.is_deleted:
            return self._by_former_path.get(descriptor.path)
        if not descriptor.path.startswith(os.sep):
            return None
        return self.inode_at(descriptor.path)

    # Names

    def create(self, path: str, at: int, is_directory: bool = False) -> None:
        """Make an empty file or directory, whose name is not safe yet."""
        inode = Inode(safe_since=at, is_directory=is_directory)
        self.add_name(path, inode, "creation", at)

    def create_nameless(self, path: str, at: int) -> Inode:
        """Make an empty file that has no name, and whose descriptors show this path as deleted."""
        inode = Inode(safe_since=at)
        self._by_former_path[path] = inode
        return inode

    def add_name(self, path: str, inode: Inode, origin: Origin, at: int) -> Name:
        """Give a file a name, which is not safe yet. Another file's name is replaced."""
        self.remove_name(path)
        inode.links += 1
        name = Name(inode, origin, given_at=at, safe_since=None)
        self.names[path] = name
        return name

    def remove_name(self, path: str) -> None:
        """Remove a name, if it is known. The file stays if it has another one."""
        name = self.names.pop(path, None)
        if name is None:
            return
        name.inode.links -= 1
        if name.inode.links > 0:
            self._by_former_path[path] = name.inode

    def rename(self, source: str, target: str, at: int) -> None:
        """Rename a file or a directory.

        Its contents, and the names below a directory, are as safe as before. The new name itself is
        not safe yet.
        """
        inode = self.inode_at(source)
        replaced = self.names.get(target)
        if replaced is not None and replaced.inode is inode:
            # POSIX: nothing happens if both are names of one file.
            return
        self.add_name(target, inode, "rename", at)
        del self.names[source]
        inode.links -= 1
        below = [path for path in self.names if path.startswith(source + os.sep)]
        for path in below:
            self.names[target + path.removeprefix(source)] = self.names.pop(path)

    def exchange(self, first: str, second: str, at: int) -> None:
        """Exchange two names, as renameat2 does with RENAME_EXCHANGE."""
        # No path of the log contains a null byte.
        aside = f"{first}\0"
        self.rename(first, aside, at)
        self.rename(second, first, at)
        self.rename(aside, second, at)

    # Contents

    def change(self, inode: Inode, change: Change, at: int) -> None:
        """Change a file's contents, so that they are not safe until the next flush."""
        inode.last_change = change
        inode.changed_at = at
        inode.safe_since = None
        if change == "written":
            inode.has_unflushed_writes = True

    def write_synchronously(self, inode: Inode, at: int) -> None:
        """Change a file's contents by a write that returns only when its bytes are safe.

        It flushes those bytes alone, so the contents are safe only if they were before.
        """
        if inode.safe_since is None:
            self.change(inode, "written", at)
        else:
            inode.safe_since = at

    def add_mapping(self, mapping: Mapping, at: int) -> None:
        """Map a file for writing. From now on it may change at any time."""
        self.change(mapping.inode, "mapped for writing", at)
        self.mappings.append(mapping)

    def mappings_within(self, pid: int, begin: int, end: int) -> list[Mapping]:
        """Return the mappings that a range of addresses covers whole.

        Other processes use the same addresses. A range of thread `pid` means its own mappings. If
        it has none, another thread of its process may have made them: they are those of one file.
        """
        covered = [
            mapping
            for mapping in self.mappings
            if begin <= mapping.address and mapping.address + mapping.length_bytes <= end
        ]
        of_thread = [mapping for mapping in covered if mapping.pid == pid]
        if of_thread:
            return of_thread
        files = {mapping.inode for mapping in covered}
        return covered if len(files) == 1 else []

    def remove_mapping(self, mapping: Mapping, at: int) -> None:
        """End a mapping.

        Stores were possible until now, so only a flush from here on covers them, unless msync did.
        """
        self.mappings.remove(mapping)
        if not mapping.is_synced:
            self.change(mapping.inode, "mapped for writing", at)

    # Flushes

    def flush_contents(self, inode: Inode, entered_at: int, returned_at: int) -> None:
        """Make a file's contents safe.

        A flush covers the changes that had ended when it was entered. It holds from its return on.
        """
        inode.was_ever_flushed = True
        # Stores through a mapping may follow the flush unseen.
        may_change_unseen = any(
            mapping.inode is inode and not mapping.is_synced for mapping in self.mappings
        )
        is_covered = inode.changed_at < entered_at
        if is_covered:
            inode.has_unflushed_writes = False
        if inode.safe_since is None and is_covered and not may_change_unseen:
            inode.safe_since = returned_at

    def flush_names_in(self, directory: str, entered_at: int, returned_at: int) -> None:
        """Make the names in one directory safe, but not those in its subdirectories."""
        for path, name in self.names.items():
            if os.path.dirname(path) == directory:
                _flush_name(name, entered_at, returned_at)

    def flush_everything(self, entered_at: int, returned_at: int) -> None:
        """Make all contents and all names safe, as sync does."""
        inodes = {name.inode for name in self.names.values()}
        inodes.update(self._by_former_path.values())
        for inode in inodes:
            self.flush_contents(inode, entered_at, returned_at)
        for name in self.names.values():
            _flush_name(name, entered_at, returned_at)


def _is_safe(safe_since: int | None, by: int) -> bool:
    return safe_since is not None and safe_since < by


def _flush_name(name: Name, entered_at: int, returned_at: int) -> None:
    if name.safe_since is None and name.given_at < entered_at:
        name.safe_since = returned_at
