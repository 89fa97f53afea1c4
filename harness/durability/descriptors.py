"""The files that descriptors refer to, and the positions at which the descriptors stand."""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass

from harness.durability.calls import Descriptor, UnreadableError
from harness.durability.volume import FileNode, FolderNode, Node, Volume

_SYNCHRONOUS = {"O_SYNC", "O_DSYNC"}


@dataclass
class Opened:
    """The position and the flags of a descriptor, which its duplicates share."""

    position: int = 0
    appends: bool = False
    is_synchronous: bool = False


class Descriptors:
    """The descriptors that the log has shown so far.

    The log does not show which threads share their descriptors, and strace gives a path with every
    descriptor. So a descriptor is found by its number and its file. Two processes that open one
    file under one number are taken for one, and so the position of a write may be wrong. A read
    moves a position too, and is not traced. The comparison with the real files finds both.
    """

    def __init__(self, volume: Volume) -> None:
        """Take the volume that holds the files."""
        self._volume = volume
        self._opened: dict[tuple[int, FileNode], Opened] = {}
        # Files whose descriptors show a name that is no longer theirs, which several may have had.
        self._former: dict[tuple[FolderNode, str], list[FileNode]] = {}
        self._nameless: dict[tuple[int, int], FileNode] = {}

    def node(self, descriptor: Descriptor) -> Node | None:
        """Return what a descriptor refers to; None where the log did not show it being made."""
        if descriptor.is_deleted:
            return self._nameless_file(descriptor)
        # Pipes and sockets have no path.
        return self._volume.find(descriptor.path) if descriptor.path.startswith(os.sep) else None

    def file(self, descriptor: Descriptor) -> FileNode | None:
        """Return the file of a descriptor; None where it can be no part of a checkpoint.

        Raises UnreadableError where it may be one, and the log did not show it being made.
        """
        node = self.node(descriptor)
        if node is None and not descriptor.is_deleted and self._volume.is_inside(descriptor.path):
            shown = self._volume.shown(descriptor.path)
            raise UnreadableError(f"the log does not show how {shown} was made")
        return node if isinstance(node, FileNode) else None

    def opened(self, descriptor: Descriptor, file: FileNode) -> Opened:
        """Return the position and the flags of a descriptor.

        Raises UnreadableError where they are not known, because the descriptor came through a
        socket. For a file elsewhere that does not matter. If it is moved below the root, its bytes
        are compared there.
        """
        is_known = (descriptor.number, file) in self._opened
        if not is_known and self._volume.is_inside(descriptor.path):
            shown = self._volume.shown(descriptor.path)
            raise UnreadableError(
                f"the log does not show how descriptor {descriptor.number} of {shown} was opened"
            )
        return self._opened.setdefault((descriptor.number, file), Opened())

    def open(self, descriptor: Descriptor, file: FileNode, flags: Set[str]) -> None:
        """Remember a new descriptor of a file."""
        opened = Opened(appends="O_APPEND" in flags, is_synchronous=bool(flags & _SYNCHRONOUS))
        self._set(descriptor.number, file, opened)

    def open_nameless(
        self, pid: int, descriptor: Descriptor, file: FileNode, flags: Set[str]
    ) -> None:
        """Remember the descriptor of a file that was made with O_TMPFILE."""
        self._nameless[pid, descriptor.number] = file
        folder, name = self._volume.parent(descriptor.path)
        self.keep(folder, name, file)
        self.open(descriptor, file, flags)

    def duplicate(self, original: Descriptor, copy: Descriptor) -> None:
        """Let two descriptors share one position."""
        file = self.file(original)
        if file is not None:
            self._set(copy.number, file, self.opened(original, file))

    def keep(self, folder: FolderNode, name: str, file: FileNode) -> None:
        """Remember a file by the name that its descriptors go on to show."""
        self._former.setdefault((folder, name), []).append(file)

    def _set(self, number: int, file: FileNode, opened: Opened) -> None:
        # The latest one stands last.
        self._opened.pop((number, file), None)
        self._opened[number, file] = opened

    def _nameless_file(self, descriptor: Descriptor) -> FileNode | None:
        """Return the file that has lost the name by which a descriptor shows it.

        Of several, it is the one that was opened last under the descriptor's number.
        """
        # The directory may have another name by now, and then strace shows that one.
        above, name = os.path.split(descriptor.path)
        folder = self._volume.find(above)
        files = self._former.get((folder, name), []) if isinstance(folder, FolderNode) else []
        if len(files) > 1:
            opened = [file for number, file in self._opened if number == descriptor.number]
            files = [file for file in opened if file in files] or files
        return files[-1] if files else None

    def nameless(self, pid: int, number: int) -> FileNode | None:
        """Return the file made with O_TMPFILE that a descriptor refers to.

        Another thread of the process may have opened it.
        """
        if (pid, number) in self._nameless:
            return self._nameless[pid, number]
        files = {file for (_, other), file in self._nameless.items() if other == number}
        return files.pop() if len(files) == 1 else None
