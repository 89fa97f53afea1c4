"""Changes that have no interval: failures, coverage, and columns that are declared as facts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.analysis.columns import columns_of
from harness.analysis.compared import Change, Fact
from harness.analysis.comparison.sides import SideRow
from harness.analysis.row import Row

_EVERY_RANK = "every rank's own values"
# a number with its unit, which may be another one in another run
_NUMBER = re.compile(r"[\d.,]*\d(?: ?(?:[kMGTP]?i?B|[mµn]?s|min|h|%)\b)?")


def changes(base: SideRow, head: SideRow) -> list[Change]:
    """Return what is different besides the metrics; nothing where a race in a framework decided."""
    if failed_by_chance(base, head):
        return []
    found = [
        *_status_changes(base.row, head.row),
        *_failure_changes(base, head),
        *_coverage_changes(base, head),
    ]
    if base.row.status == "ok" and head.row.status == "ok":
        found += _column_changes(base.row, head.row)
        found += _mark_changes(base.row, head.row)
    return found


def doubts(base: SideRow, head: SideRow) -> list[str]:
    """Return what is not known of the head any more, a sentence each."""
    sentences = []
    for name, fact in _facts(base.row):
        before, now = getattr(base.row, name), getattr(head.row, name)
        sentences.append(fact.doubt(before, now, head.row))
    return [sentence for sentence in sentences if sentence]


def failed_by_chance(base: SideRow, head: SideRow) -> bool:
    """Return whether a side failed, and only by a declared fault that comes and goes."""
    failed = [row for row in (base, head) if row.row.status == "failed"]
    return bool(failed) and all(row.planned.race and row.fails_as_declared for row in failed)


def _facts(row: Row) -> Iterator[tuple[str, Fact]]:
    """Yield the fields of a row that are declared as facts, in order."""
    for name, column in columns_of(type(row)).items():
        if isinstance(column.compared, Fact):
            yield name, column.compared


def _column_changes(base: Row, head: Row) -> Iterator[Change]:
    for name, fact in _facts(base):
        change = fact.change_of_rows(name, base, head)
        if change is not None:
            yield change


def failed_on_both(base: SideRow, head: SideRow) -> bool:
    """Return whether a row failed on both sides, and not as its adapter declares."""
    return base.row.status == head.row.status == "failed" and not base.fails_as_declared


def _mark_changes(base: Row, head: Row) -> Iterator[Change]:
    """Yield that a row has new marks, or has none any more."""
    known = {_kind(mark) for mark in base.marks}
    new = [mark for mark in head.marks if _kind(mark) not in known]
    if new:
        yield Change(f"is marked now: {'; '.join(new)}", is_worse=True)
    if base.marks and not head.marks:
        yield Change("is not marked any more", is_worse=False)


def _kind(mark: str) -> str:
    """Return what a mark says in every run, without numbers and the details behind a colon.

    Details are what differs in every run, such as the names of temporary files.
    """
    return _NUMBER.sub("#", mark.partition(": ")[0])


def _status_changes(base: Row, head: Row) -> Iterator[Change]:
    if base.status == "ok" and head.status != "ok":
        yield Change(f"{head.status} in {head.phase or 'the run'}: {head.reason}", is_worse=True)
    if base.status != "ok" and head.status == "ok":
        yield Change(f"was {base.status} and is measured now", is_worse=False)


def _failure_changes(base: SideRow, head: SideRow) -> Iterator[Change]:
    """Yield that a row fails otherwise than its adapter declares.

    Only a declared reason can change. Reasons that nobody declares may differ from run to run.
    """
    if not base.fails_as_declared or head.row.status != "failed" or head.fails_as_declared:
        return
    phase = head.row.phase or "the run"
    sentence = f"fails otherwise than its adapter declares, in {phase}: {head.row.reason}"
    yield Change(sentence, is_worse=True)


def _coverage_changes(base: SideRow, head: SideRow) -> Iterator[Change]:
    """Yield that the values of the single ranks are not in the checkpoint any more, or are now.

    The rows do not show it, because a load is verified for what its method declares.
    """
    if base.case.world == 1 or base.case.rank_local == head.case.rank_local:
        return
    if base.case.rank_local:
        yield Change(f"covered {_EVERY_RANK} and covers one rank's alone now", is_worse=True)
    else:
        yield Change(f"covers {_EVERY_RANK} now", is_worse=False)
