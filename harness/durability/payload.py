"""The bytes that a traced write hands to the kernel."""

from __future__ import annotations

import re

from harness.durability.calls import Call, UnreadableError

# strace ends a string with dots where it shows only its first part.
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\.\.\.)?')
_VECTOR = frozenset({"writev", "pwritev", "pwritev2"})


WRITES = frozenset({"write", "pwrite64"}) | _VECTOR


def written(call: Call) -> bytes:
    """Return the bytes that a call of the write family has written.

    Raises UnreadableError where the log does not hold all of them.
    """
    whole = shown(call)
    if len(whole) < call.value:
        raise UnreadableError(f"the log does not hold all bytes of {call.name}")
    return whole[: call.value]


def shown(call: Call) -> bytes:
    """Return the bytes that a call of the write family was to write.

    Raises UnreadableError where the log does not hold all of them.
    """
    strings = _STRING.findall(call.argument(1))
    if call.name not in _VECTOR:
        strings = strings[:1]
    if not strings or any(dots for _, dots in strings):
        raise UnreadableError(f"the log does not hold the bytes of {call.name}")
    return b"".join(_bytes(text) for text, _ in strings)


def _bytes(text: str) -> bytes:
    """Return the bytes that strace spells as a C string."""
    return text.encode("ascii").decode("unicode_escape").encode("latin-1")
