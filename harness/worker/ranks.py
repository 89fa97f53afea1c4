"""One record that speaks for all ranks, for worlds too large for a record of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import numpy as np

from harness.wire.records import (
    PERCENTILES,
    Backing,
    RankSpread,
    Record,
    SampleRecord,
    Spread,
    Usage,
)

_LEAST_EVIDENCE_LAST = ("backed", "physical", "unknown")  # that memory is backed
_ADDED_UP = (("cpu_user_ns", "cpu_system_ns"), ("peak_rss_bytes", "children_peak_bytes"))

RecordT = TypeVar("RecordT", bound=Record)
SampleT = TypeVar("SampleT", bound=SampleRecord)


def changed(record: RecordT, **changes: Any) -> RecordT:
    """Return the record with some fields changed."""
    # The base classes of records are no dataclasses, although every record is one.
    copied = replace(cast(Any, record), **changes)
    return cast(RecordT, copied)


def slowest(records: Sequence[SampleT], durations_ns: Sequence[int]) -> SampleT:
    """Return the record of the rank that took longest."""
    return records[int(np.argmax(durations_ns))]


def for_all_ranks(
    record: SampleT,
    records: Sequence[SampleT],
    durations_ns: Sequence[int],
    moved_bytes: Sequence[int],
    **changes: Any,
) -> SampleT:
    """Return one rank's record in the name of all ranks.

    It is disturbed where any rank was. Its evidence of backed memory is that of the rank with the
    least, and its usage is in every respect that of the rank that used most. `durations_ns` and
    `moved_bytes` have one value per rank, and become the spread over the ranks. `changes` are
    fields that are summed up otherwise.
    """
    spread = RankSpread(
        ranks=len(records),
        duration_ns=_spread(durations_ns),
        written_bytes=_spread(moved_bytes),
    )
    disturbed = any(each.disturbed for each in records)
    usage = _most([cast(Any, each).usage for each in records])
    if hasattr(record, "backing"):
        backings = [cast(Any, each).backing for each in records]
        changes |= {"backing": max(backings, key=_lack_of_evidence)}
    return changed(record, rank=0, disturbed=disturbed, usage=usage, spread=spread, **changes)


def _lack_of_evidence(backing: Backing) -> int:
    return _LEAST_EVIDENCE_LAST.index(backing.state)


def _most(usages: Sequence[Usage]) -> Usage:
    """Return the most that any rank used of each.

    Values that are added up afterwards are those of one rank.
    """
    names = [each.name for each in fields(Usage)]
    most = {name: max(getattr(usage, name) for usage in usages) for name in names}
    for first, second in _ADDED_UP:
        used_most = max(usages, key=lambda usage: getattr(usage, first) + getattr(usage, second))
        most |= {name: getattr(used_most, name) for name in (first, second)}
    return Usage(**most)


def _spread(values: Sequence[int]) -> Spread:
    percentiles = np.percentile(values, PERCENTILES)
    return Spread(
        percentiles=tuple(float(value) for value in percentiles),
        slowest_rank=int(np.argmax(values)),
    )
