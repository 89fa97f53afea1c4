"""One system call, with its arguments and its result as strace spells them."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

# The end of a call that never returns in the log.
FOREVER = sys.maxsize

# The instant of what happened before the log begins.
BEFORE_LOG = -1

# strace marks the path of a deleted file, older versions inside the brackets.
_DESCRIPTOR = re.compile(r"(\d+|AT_FDCWD)<(.*?)( \(deleted\))?>(\(deleted\))?")
_WORKING_DIRECTORY = "AT_FDCWD"


class UnreadableError(Exception):
    """The text of a call that may matter cannot be interpreted."""


@dataclass(frozen=True)
class Descriptor:
    """A file descriptor and the path that strace shows for it.

    Pipes and sockets have a text like `pipe:[17]` in place of a path.
    """

    # -1 for AT_FDCWD, the working directory
    number: int
    path: str
    # The name by which the file was opened is gone. The file may have another one.
    is_deleted: bool

    @classmethod
    def parse(cls, text: str) -> Descriptor:
        """Read a descriptor such as `3</scratch/model.pt>`.

        Raises UnreadableError if the text is anything else.
        """
        match = _DESCRIPTOR.fullmatch(text)
        if match is None:
            raise UnreadableError(f"the descriptor {text!r} has no path")
        number = -1 if match[1] == _WORKING_DIRECTORY else int(match[1])
        is_deleted = bool(match[3] or match[4])
        return cls(number, unescaped(match[2]), is_deleted)


@dataclass(frozen=True)
class Call:
    """One system call of one thread.

    `start` and `end` are the lines of the log, counted from 0, on which the call was entered and on
    which it returned. They serve as instants: a call that ends before another one starts has
    happened before it.

    The methods that interpret an argument raise UnreadableError if they cannot.
    """

    # the thread, as strace identifies it
    pid: int
    # empty for a line that is no readable call
    name: str
    arguments: tuple[str, ...]
    # empty or "?" for a call that never returned
    result: str
    start: int
    end: int

    @property
    def is_readable(self) -> bool:
        """Tell whether the line is a call that could be parsed."""
        return self.name != ""

    @property
    def has_failed(self) -> bool:
        """Tell whether the call had no effect: it failed, or a signal interrupted it."""
        return self.result.startswith(("-1 ", "? "))

    @property
    def has_returned(self) -> bool:
        """Tell whether the log shows the call's return."""
        return self.end < FOREVER

    @property
    def value(self) -> int:
        """The number that the call returned, or 0 for a call that never returned."""
        return _integer(self.result.split()[0]) if self.has_returned else 0

    @property
    def returned_descriptor(self) -> Descriptor:
        """The descriptor that the call returned."""
        return Descriptor.parse(self.result)

    @property
    def string_positions(self) -> list[int]:
        """The positions of the arguments that are strings."""
        return [index for index, text in enumerate(self.arguments) if text.startswith('"')]

    @property
    def open_flags(self) -> set[str]:
        """The flags with which a call of the open family asks for its file."""
        if self.name == "creat":
            return {"O_CREAT", "O_WRONLY", "O_TRUNC"}
        return set(re.findall(r"\bO_\w+", " ".join(self.arguments[1:])))

    def argument(self, index: int) -> str:
        """Return an argument as strace spells it."""
        try:
            return self.arguments[index]
        except IndexError:
            raise UnreadableError(f"the log shows too few arguments of {self.name}") from None

    def descriptor(self, index: int) -> Descriptor:
        """Return an argument that is a descriptor."""
        return Descriptor.parse(self.argument(index))

    def number(self, index: int) -> int:
        """Return an argument that is a number."""
        return _integer(self.argument(index))


def is_descriptor(text: str) -> bool:
    """Tell whether an argument is a descriptor with a path."""
    return _DESCRIPTOR.fullmatch(text) is not None


def unescaped(text: str) -> str:
    """Return the path that strace spells as a C string.

    Raises UnreadableError if the text is no such string.
    """
    try:
        path_bytes = text.encode("ascii").decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        raise UnreadableError(f"{text!r} is not a path") from None
    return os.fsdecode(path_bytes)


def escaped(path: str) -> str:
    """Return a path as `unescaped` reads it."""
    return os.fsencode(path).decode("latin-1").encode("unicode_escape").decode("ascii")


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UnreadableError(f"{text!r} is not a number") from None
