"""The bytes that a traced write hands to the kernel, and the offsets that a call names."""

from __future__ import annotations

import re

from harness.durability.calls import Call, UnreadableError

# strace ends a string with dots where it shows only its first part. The possessive quantifiers take
# a string of many megabytes without a way back for every character.
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"(\.\.\.)?')
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
    whole = b"".join(_bytes(text) for text, _ in strings)
    if any(dots for _, dots in strings):
        raise UnreadableError(f"the log holds only {len(whole):,} bytes of a longer {call.name}")
    return whole


def named_offset(call: Call) -> int | None:
    """Return the offset at which a call is to write; None where it takes the descriptor's."""
    if call.name in ("write", "writev"):
        return None
    offset = call.number(3)
    # pwritev2 takes -1 for the descriptor's own.
    return None if offset == -1 else offset


def offset_beside(call: Call, descriptor_at: int, position: int) -> int:
    """Return the offset that a call names after a descriptor, or else the descriptor's position."""
    text = call.argument(descriptor_at + 1)
    if text == "NULL":
        return position
    # The kernel moves the offset on, and strace shows both: [0] => [4096].
    match = re.match(r"\[(\d+)\]", text)
    if match is None:
        raise UnreadableError(f"the offset {text} of {call.name} cannot be read")
    return int(match[1])


def _bytes(text: str) -> bytes:
    """Return the bytes that strace spells as a C string."""
    return text.encode("ascii").decode("unicode_escape").encode("latin-1")
