"""The paths that calls name, made absolute."""

from __future__ import annotations

import os
import re
from pathlib import Path

from harness.durability.calls import Call, Descriptor, UnreadableError, is_descriptor, unescaped

# The path of an open file of a process, by which a file without a name is linked.
OPEN_DESCRIPTOR = re.compile(r"/proc/[^/]+/fd/(\d+)")


class Paths:
    """Makes the paths of calls absolute, and tells which of them are below a root directory.

    It follows the working directory of every thread. Symbolic links below the root are not
    resolved.
    """

    def __init__(self, root: Path) -> None:
        """Take the root, by any path that leads to it."""
        self._given_root = os.path.abspath(root)
        # strace shows descriptors by the kernel's paths, which have no symbolic links.
        self.root = os.path.realpath(root)
        self._working_directories: dict[int, str] = {}

    def is_inside(self, path: str) -> bool:
        """Tell whether a path is below the root."""
        return path.startswith(self.root + os.sep)

    def is_root_or_inside(self, path: str) -> bool:
        """Tell whether a path is the root or below it."""
        return path == self.root or self.is_inside(path)

    def set_working_directory(self, pid: int, path: str) -> None:
        """Remember the directory in which a thread works."""
        self._working_directories[pid] = path

    def first_of(self, call: Call) -> str:
        """Return the absolute path that is the call's first path argument.

        Raises UnreadableError if the log does not show which path that is.
        """
        return self._resolve(call, 0)

    def last_of(self, call: Call) -> str:
        """Return the absolute path that is the call's last path argument.

        Raises UnreadableError if the log does not show which path that is.
        """
        return self._resolve(call, -1)

    def _resolve(self, call: Call, which: int) -> str:
        positions = call.string_positions
        if not positions:
            raise UnreadableError(f"the log shows no path for {call.name}")
        position = positions[which]
        path = unescaped(call.argument(position)[1:-1])
        if not os.path.isabs(path):
            path = os.path.join(self._base(call, position), path)
        return self._with_real_root(os.path.normpath(path))

    def _base(self, call: Call, position: int) -> str:
        """Return the directory to which the path at an argument's position is relative.

        Calls such as openat take a descriptor of that directory before the path.
        """
        before = call.argument(position - 1) if position > 0 else ""
        if is_descriptor(before):
            return Descriptor.parse(before).path
        return self._working_directory(call.pid)

    def _working_directory(self, pid: int) -> str:
        """Return the directory in which a thread works.

        A thread whose directory the log has not shown yet, as after a fork, works where all others
        do.
        """
        if pid in self._working_directories:
            return self._working_directories[pid]
        directories = set(self._working_directories.values())
        if len(directories) != 1:
            raise UnreadableError("its path is relative and the working directory is not known")
        return directories.pop()

    def _with_real_root(self, path: str) -> str:
        """Return a path below the root as the kernel spells it."""
        if path == self._given_root:
            return self.root
        if path.startswith(self._given_root + os.sep):
            return self.root + path.removeprefix(self._given_root)
        return path
