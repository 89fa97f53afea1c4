"""The records of one run, or of runs that may be pooled, found by class and case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from harness.analysis.samples import sample_frame
from harness.wire.records import FailureRecord, IsolatedRecord, Record, StateRecord

if TYPE_CHECKING:
    from harness.analysis.samples import SampleTable

AnyRecord = TypeVar("AnyRecord", bound=Record)


def that_count(records: Iterable[Record]) -> list[Record]:
    """Return the records that no later one voids."""
    counting: list[Record] = []
    for record in records:
        if isinstance(record, IsolatedRecord):
            counting = [earlier for earlier in counting if not record.voids(earlier)]
        counting.append(record)
    return counting


class RunRecords:
    """Records sorted by class and case, and the data frames of their samples."""

    def __init__(self, records: Iterable[Record], worlds: Mapping[str, int]) -> None:
        """Sort the records; `worlds` gives each case's number of ranks."""
        self._worlds = dict(worlds)
        self._by_class: dict[type[Record], list[Any]] = defaultdict(list)
        self._by_case: dict[tuple[type[Record], str], list[Any]] = defaultdict(list)
        self._frames: dict[SampleTable, pd.DataFrame] = {}
        for record in that_count(records):
            self._by_class[type(record)].append(record)
            self._by_case[type(record), getattr(record, "case", "")].append(record)

    def all(self, kind: type[AnyRecord]) -> list[AnyRecord]:
        """Return the records of a class, in the order in which they were stored."""
        return list(self._by_class.get(kind, []))

    def of(self, kind: type[AnyRecord], case: str) -> list[AnyRecord]:
        """Return the records of a class that are about a case."""
        return list(self._by_case.get((kind, case), []))

    def last(self, kind: type[AnyRecord], case: str) -> AnyRecord | None:
        """Return the newest record of a class that is about a case; None where there is none."""
        found = self._by_case.get((kind, case))
        return found[-1] if found else None

    def failures(self, case: str) -> list[FailureRecord]:
        """Return why a case has no number, where it failed."""
        return self.of(FailureRecord, case)

    def samples(self, table: SampleTable, row_class: type[Any]) -> pd.DataFrame:
        """Return the samples of a table, of all cases; see `sample_frame`."""
        if table not in self._frames:
            records = self.all(table.record)
            self._frames[table] = sample_frame(table, row_class, records, self._worlds)
        return self._frames[table]

    def samples_of(self, table: SampleTable, row_class: type[Any], case: str) -> pd.DataFrame:
        """Return the samples of a table that are about one case."""
        frame = self.samples(table, row_class)
        return frame[frame["case"] == case]

    def copy_s(self, case: str, copy_ns: Callable[[StateRecord], int]) -> float | None:
        """Return the seconds of a copy of a case's state; None where none was timed.

        It is the median over processes and ranks, because any one of them may have been disturbed.
        """
        copies_ns = [copy_ns(state) for state in self.of(StateRecord, case)]
        if not any(copies_ns):
            return None
        return float(np.median(copies_ns)) / 1e9
