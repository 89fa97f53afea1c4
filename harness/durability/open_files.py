"""The modes in which descriptors are open, as far as they matter to a write."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.durability.calls import UnreadableError
from harness.durability.file_system import Inode


@dataclass(frozen=True)
class OpenMode:
    """The mode in which a thread opened a file for writing."""

    pid: int
    is_direct: bool
    # a write returns only when its bytes are safe
    is_synchronous: bool


class OpenFiles:
    """The modes of descriptors, and the files that have no name but a descriptor.

    The log does not show which threads share their descriptors, and strace gives a path with every
    descriptor. So a mode is found by number and file.
    """

    def __init__(self) -> None:
        self._modes: dict[tuple[int, Inode], OpenMode] = {}
        # files made with O_TMPFILE, by thread and descriptor
        self._nameless: dict[tuple[int, int], Inode] = {}

    def mode(self, number: int, inode: Inode | None) -> OpenMode | None:
        """Return the mode of a file's descriptor, or None if the log did not show its opening."""
        return self._modes.get((number, inode)) if inode is not None else None

    def open(self, number: int, inode: Inode, mode: OpenMode) -> None:
        """Remember the mode of a new descriptor.

        Two processes may have the same number for one file. Then its writes count as synchronous
        only if both opened it so.
        """
        other = self.mode(number, inode)
        if other is not None and other.pid != mode.pid and not other.is_synchronous:
            mode = replace(mode, is_synchronous=False)
        self._modes[number, inode] = mode

    def set_direct(self, number: int, inode: Inode | None, is_direct: bool) -> None:
        """Switch O_DIRECT of an open descriptor."""
        mode = self.mode(number, inode)
        if inode is not None and mode is not None:
            self._modes[number, inode] = replace(mode, is_direct=is_direct)

    def open_nameless(self, pid: int, number: int, inode: Inode) -> None:
        """Remember the descriptor of a file that was made with O_TMPFILE."""
        self._nameless[pid, number] = inode

    def nameless(self, pid: int, number: int) -> Inode:
        """Return the file made with O_TMPFILE that a descriptor refers to.

        Another thread of the process may have opened it. Raises UnreadableError if the log does not
        show which file it is.
        """
        if (pid, number) in self._nameless:
            return self._nameless[pid, number]
        candidates = {inode for (_, other), inode in self._nameless.items() if other == number}
        if len(candidates) != 1:
            raise UnreadableError(
                f"it links descriptor {number} and the log does not show which file that is"
            )
        return candidates.pop()
