"""The system calls that the gate sees, and the arguments by which they name files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from harness.wire.strikes import Struck

# An "order" may be one to the gate.
Family = Literal["write", "open", "fsync", "rename", "close", "change", "order"]

_UNCHANGING = ("fsync", "close", "order")


@dataclass(frozen=True)
class Name:
    """The arguments of a call that name a file by its path."""

    path: int
    # the descriptor of the directory where a relative path begins; None for the working directory
    directory: int | None = None
    # The call acts on the file behind a symbolic link, not on the link.
    follows_link: bool = False


@dataclass(frozen=True)
class Form:
    """The form of a system call. Arguments are given by their positions, from 0."""

    family: Family
    # stands before the names of the files: "write to model.pt"
    words: str
    # the descriptor of the file that the call acts on
    descriptor: int | None = None
    names: tuple[Name, ...] = ()
    # the flags of an open
    flags: int | None = None

    def belongs_to(self, struck: Struck) -> bool:
        """Return whether the call may be one of those that an order counts."""
        if struck == "change":
            return self.family not in _UNCHANGING
        if struck == "directory":
            return self.family not in (*_UNCHANGING, "write")
        return self.family == struck


def _to_file(family: Family, words: str, descriptor: int = 0) -> Form:
    return Form(family, words, descriptor=descriptor)


def _to_names(family: Family, words: str, *names: Name) -> Form:
    return Form(family, words, names=names)


def _opening(name: Name, flags: int | None) -> Form:
    return Form("open", "open", names=(name,), flags=flags)


FORMS = {
    "write": _to_file("write", "write to"),
    "pwrite64": _to_file("write", "write to"),
    "writev": _to_file("write", "write to"),
    "pwritev": _to_file("write", "write to"),
    "pwritev2": _to_file("write", "write to"),
    "sendfile": _to_file("write", "copy to"),
    "copy_file_range": _to_file("write", "copy to", descriptor=2),
    "open": _opening(Name(0, follows_link=True), flags=1),
    "openat": _opening(Name(1, directory=0, follows_link=True), flags=2),
    # Their flags are no argument: creat has none, and those of openat2 are in memory.
    "creat": _opening(Name(0, follows_link=True), flags=None),
    "openat2": _opening(Name(1, directory=0, follows_link=True), flags=None),
    "fsync": _to_file("fsync", "fsync"),
    "fdatasync": _to_file("fsync", "fsync"),
    "rename": _to_names("rename", "rename", Name(0), Name(1)),
    "renameat": _to_names("rename", "rename", Name(1, directory=0), Name(3, directory=2)),
    "renameat2": _to_names("rename", "rename", Name(1, directory=0), Name(3, directory=2)),
    "close": _to_file("close", "close"),
    "truncate": _to_names("change", "truncate", Name(0, follows_link=True)),
    "ftruncate": _to_file("change", "truncate"),
    "fallocate": _to_file("change", "allocate"),
    "mkdir": _to_names("change", "mkdir", Name(0)),
    "mkdirat": _to_names("change", "mkdir", Name(1, directory=0)),
    "unlink": _to_names("change", "unlink", Name(0)),
    "unlinkat": _to_names("change", "unlink", Name(1, directory=0)),
    "rmdir": _to_names("change", "rmdir", Name(0)),
    "link": _to_names("change", "link", Name(0), Name(1)),
    "linkat": _to_names("change", "link", Name(1, directory=0), Name(3, directory=2)),
    # The path that a symbolic link holds is a text, and names no file yet.
    "symlink": _to_names("change", "symlink", Name(1)),
    "symlinkat": _to_names("change", "symlink", Name(2, directory=1)),
    "access": _to_names("order", "access", Name(0)),
    "faccessat": _to_names("order", "access", Name(1, directory=0)),
    "faccessat2": _to_names("order", "access", Name(1, directory=0)),
}

# The mask and the value of the flags with which an open may change something.
CHANGING_FLAGS = (
    (os.O_ACCMODE, os.O_WRONLY),
    (os.O_ACCMODE, os.O_RDWR),
    (os.O_CREAT, os.O_CREAT),
    (os.O_TRUNC, os.O_TRUNC),
)
CREAT_FLAGS = os.O_CREAT | os.O_WRONLY | os.O_TRUNC


def may_change(flags: int) -> bool:
    """Return whether an open with these flags asks for write access, or creates or truncates."""
    return any(flags & mask == value for mask, value in CHANGING_FLAGS)


@dataclass(frozen=True)
class Request:
    """A system call that waits for the gate's answer."""

    thread: int
    name: str
    arguments: tuple[int, ...]

    @property
    def form(self) -> Form:
        """The form of the call."""
        return FORMS[self.name]


@dataclass(frozen=True)
class Answer:
    """The gate's answer to a call."""

    # The kernel makes the call, or the call only returns, or something is killed before it.
    action: Literal[
        "continue", "return", "kill", "kill-process", "kill-session", "kill-group", "kill-others"
    ]
    # what the call returns
    value: int = 0
    # a number of `errno`; 0 for none
    error: int = 0
    # the descriptor that the caller loses meanwhile; None for none
    loses: int | None = None


CONTINUE = Answer("continue")
