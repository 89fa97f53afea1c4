"""A thread that waits in a system call, as the gate sees it through /proc."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from collections.abc import Iterator

_LONGEST_PATH = 4096
# In place of a directory's descriptor: a relative path begins at the working directory.
AT_FDCWD = -100
# pidfd_getfd has this number on every architecture. Python has no function for it.
_PIDFD_GETFD = 438
# In the gate, these mean the gate's own descriptors.
_OWN_FOLDERS = ("/proc/self/", "/proc/thread-self/")

_libc = ctypes.CDLL(None, use_errno=True)


class Target:
    """A thread that waits in a system call until the gate answers.

    All methods raise OSError if the thread has died, or if its call's arguments lead nowhere.
    """

    def __init__(self, thread: int) -> None:
        """Take the thread's number."""
        self._folder = f"/proc/{thread}"

    def process(self) -> int:
        """Return the number of the thread's process."""
        return int(self._field("status", "Tgid:"), 10)

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes of memory, or fewer where a gap follows."""
        with self._memory(os.O_RDONLY, address) as memory:
            return os.pread(memory, size, address)

    def read_number(self, address: int) -> int:
        """Return the number of 8 bytes at an address."""
        return int.from_bytes(self.read(address, 8), sys.byteorder)

    def read_into(self, buffer: memoryview, address: int) -> None:
        """Fill a buffer from memory."""
        with self._memory(os.O_RDONLY, address) as memory:
            while buffer:
                size = os.preadv(memory, [buffer], address)
                if size == 0:
                    raise _error(errno.EFAULT)
                buffer = buffer[size:]
                address += size

    def write_number(self, address: int, number: int) -> None:
        """Store a number in 8 bytes at an address."""
        with self._memory(os.O_WRONLY, address) as memory:
            os.pwrite(memory, number.to_bytes(8, sys.byteorder), address)

    def text(self, address: int) -> str:
        """Return the path that begins at an address."""
        return os.fsdecode(self.read(address, _LONGEST_PATH).partition(b"\0")[0])

    def opened(self, descriptor: int) -> str:
        """Return the path of an open file. Pipes and sockets have a text like `pipe:[17]`."""
        return os.readlink(f"{self._folder}/fd/{_signed(descriptor)}")

    def is_writable(self, descriptor: int) -> bool:
        """Return whether a descriptor was opened for writing."""
        flags = int(self._field(f"fdinfo/{_signed(descriptor)}", "flags:"), 8)
        return flags & os.O_ACCMODE != os.O_RDONLY

    def absolute(self, path: str, directory: int, *, follows_link: bool) -> str:
        """Return the path that the kernel would come to, without symbolic links.

        `directory` is the descriptor where a relative path begins. A link at the path's end is kept
        unless `follows_link`.
        """
        for folder in _OWN_FOLDERS:
            if path.startswith(folder):
                path = f"{self._folder}/{path.removeprefix(folder)}"
        if not os.path.isabs(path):
            path = os.path.join(self._start(directory), path)
        if follows_link:
            return os.path.realpath(path)
        parent, name = os.path.split(path.rstrip("/"))
        return os.path.join(os.path.realpath(parent), name)

    @contextlib.contextmanager
    def borrowed(self, descriptor: int) -> Iterator[int]:
        """Share an open file, with its position, within the block."""
        process = os.pidfd_open(self.process())
        try:
            shared = _libc.syscall(_PIDFD_GETFD, process, _signed(descriptor), 0)
            if shared < 0:
                raise _error(ctypes.get_errno())
        finally:
            os.close(process)
        try:
            yield shared
        finally:
            os.close(shared)

    def _start(self, directory: int) -> str:
        if _signed(directory) == AT_FDCWD:
            return os.readlink(f"{self._folder}/cwd")
        return self.opened(directory)

    @contextlib.contextmanager
    def _memory(self, mode: int, address: int) -> Iterator[int]:
        if address > sys.maxsize:
            # It is no address, and Python could not pass it on.
            raise _error(errno.EFAULT)
        memory = os.open(f"{self._folder}/mem", mode | os.O_CLOEXEC)
        try:
            yield memory
        finally:
            os.close(memory)

    def _field(self, file: str, label: str) -> str:
        with open(f"{self._folder}/{file}") as lines:
            for line in lines:
                if line.startswith(label):
                    return line.removeprefix(label).strip()
        raise _error(errno.ENOENT)


def _signed(argument: int) -> int:
    """Return the descriptor that an argument of 64 bits holds."""
    return ctypes.c_int(argument & 0xFFFFFFFF).value


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
