"""Reads the lines of an `strace -f -y` log into calls, in the order of their return."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.durability.calls import FOREVER, Call

_LINE = re.compile(r"(\d+) +(.*)")
_CALL = re.compile(r"(\w+)\((.*)")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_UNFINISHED = "<unfinished ...>"
# Exits of threads, and signals.
_NOTICES = ("+++ ", "--- ")
_OPENING = ("[", "(", "{")
_CLOSING = ("]", ")", "}")
# Strings and the paths in <> are one token each, because they may hold brackets and commas. The
# possessive quantifiers take a string of many megabytes without a way back for every character.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|<[^<>]*>|[\[({]|[\])}]|,|[^"<\[({\])},]+|.')


@dataclass(frozen=True)
class _Entry:
    """The first half of a call that another thread's line interrupts in the log."""

    line: int
    text: str


def read(log: Path) -> list[Call]:
    """Read every call of a log, with all the arguments that the log shows.

    The calls come in the order in which they returned. Calls that never returned come last. A line
    that is no call gives a Call without a name, because what it hides may matter.

    Raises OSError if the file cannot be read.
    """
    with open(log, encoding="utf-8", errors="surrogateescape") as lines:
        return list(parse(lines))


def parse(lines: Iterable[str]) -> Iterator[Call]:
    """Yield the calls of a log's lines, as `read` does."""
    unfinished: dict[int, _Entry] = {}
    for at, line in enumerate(lines):
        pid, text = _split_line(line)
        if text.startswith(_NOTICES):
            continue
        if text.endswith(_UNFINISHED):
            unfinished[pid] = _Entry(at, text.removesuffix(_UNFINISHED))
            continue
        whole = _joined(unfinished.pop(pid, None), _Entry(at, text))
        yield _parse_call(pid, whole.text, whole.line, at)
    for pid, entry in unfinished.items():
        yield _parse_call(pid, entry.text.rstrip(", ") + ")", entry.line, FOREVER)


def _split_line(line: str) -> tuple[int, str]:
    """Return the thread that a line is about, and the rest of the line."""
    match = _LINE.fullmatch(line.rstrip("\n"))
    if match is None:
        return 0, line
    return int(match[1]), match[2]


def _joined(first: _Entry | None, last: _Entry) -> _Entry:
    """Return the whole text of a call and the line on which it was entered.

    The text is empty if the log has the second half of a call without its first half.
    """
    resumed = _RESUMED.fullmatch(last.text)
    if resumed is None:
        return last
    if first is None or not first.text.startswith(resumed[1] + "("):
        return _Entry(last.line, "")
    return _Entry(first.line, first.text + resumed[2])


def _parse_call(pid: int, text: str, start: int, end: int) -> Call:
    unreadable = Call(pid, name="", arguments=(), result="", start=start, end=end)
    match = _CALL.fullmatch(text)
    if match is None:
        return unreadable
    split = _split_arguments(match[2])
    if split is None:
        return unreadable
    arguments, rest = split
    if end < FOREVER and not rest.lstrip().startswith("= "):
        return unreadable
    result = rest.strip().removeprefix("= ")
    if result == "?":
        # The process ended in the call.
        end = FOREVER
    return Call(pid, match[1], arguments, result, start, end)


def _split_arguments(text: str) -> tuple[tuple[str, ...], str] | None:
    """Return the arguments of a call and the text after its closing bracket.

    `text` starts behind the call's opening bracket. Return None if that bracket is never closed.
    """
    arguments: list[str] = []
    depth = 0
    begin = 0
    for token in _TOKEN.finditer(text):
        if token[0] in _OPENING:
            depth += 1
        elif token[0] in _CLOSING:
            depth -= 1
        is_end = depth < 0
        if is_end or (depth == 0 and token[0] == ","):
            arguments.append(text[begin : token.start()].strip())
            begin = token.end()
        if is_end:
            return tuple(argument for argument in arguments if argument), text[begin:]
    return None
