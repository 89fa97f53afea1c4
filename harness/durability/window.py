"""Finds a save in a log by the marks that the worker left there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.durability.calls import FOREVER, Call
from harness.wire import marks

# The calls by which `marks.mark` shows in a log; which one it is depends on the C library.
MARK_CALLS = ("access", "faccessat", "faccessat2")


class MissingMarkError(Exception):
    """The log does not hold a whole save of the case."""


@dataclass(frozen=True)
class Window:
    """The lines of the log on which the marks of one save were made.

    `end` is the line on which the worker stopped watching for late writes, or on which the next
    save began. It is FOREVER if the log ends before either.
    """

    begin: int
    returned: int
    finished: int
    end: int


WHOLE_LOG = Window(begin=-1, returned=FOREVER, finished=FOREVER, end=FOREVER)
"""The window of a log that holds one write of files and nothing else."""


@dataclass(frozen=True)
class _Mark:
    line: int
    case_id: str
    instant: marks.Instant


def find_window(calls: Iterable[Call], case_id: str) -> Window:
    """Return the window of a case's first save.

    Raises MissingMarkError if the log lacks one of its marks.
    """
    all_marks = list(_marks(calls))
    begin = _first_line(all_marks, case_id, "begin", after=-1)
    returned = _first_line(all_marks, case_id, "returned", after=begin)
    finished = _first_line(all_marks, case_id, "finished", after=returned)
    ends = [
        mark.line
        for mark in all_marks
        if mark.instant in ("begin", "watched") and mark.line > finished
    ]
    return Window(begin, returned, finished, end=min(ends, default=FOREVER))


def _marks(calls: Iterable[Call]) -> Iterator[_Mark]:
    for call in calls:
        if call.name not in MARK_CALLS or not call.string_positions:
            continue
        path = call.argument(call.string_positions[0]).strip('"')
        mark = marks.parse(path)
        if mark is not None:
            case_id, instant = mark
            yield _Mark(call.start, case_id, instant)


def _first_line(all_marks: list[_Mark], case_id: str, instant: marks.Instant, after: int) -> int:
    """Return the first line after `after` on which the case's instant is marked."""
    lines = [
        mark.line
        for mark in all_marks
        if (mark.case_id, mark.instant) == (case_id, instant) and mark.line > after
    ]
    if not lines:
        raise MissingMarkError(
            "the log does not hold the whole save, "
            f"because it has no mark {instant!r} of case {case_id}"
        )
    return min(lines)


def begin_of(calls: Iterable[Call], case_id: str) -> int:
    """Return the line on which a case's save began. Raises MissingMarkError if it did not."""
    return _first_line(list(_marks(calls)), case_id, "begin", after=-1)


def case_lines(lines: Sequence[str], case_id: str) -> list[str]:
    """Return the lines of a log from the opening of a case's method to the end of its save.

    Raises MissingMarkError if the log lacks either mark.
    """
    begin = _line_with(lines, marks.path(case_id, "opened"))
    end = _line_with(lines, marks.path(case_id, "watched"))
    return list(lines[begin : end + 1])


def _line_with(lines: Sequence[str], path: str) -> int:
    for number, line in enumerate(lines):
        if path in line:
            return number
    raise MissingMarkError(f"the log has no mark {path}")
