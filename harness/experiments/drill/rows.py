"""The rows of experiment `drill`: which way back survives which failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.columns import column, identity_column
from harness.analysis.compared import Flag
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity, printable
from harness.analysis.statistics import Estimate, single_value
from harness.experiments.drill import DRILLS
from harness.experiments.drill.records import DrillRecord
from harness.experiments.recovery import WAYS


def _passed_text(row: DrillRow) -> str:
    if row.passed is None:
        return "unknown" if row.status == "ok" else row.status
    return "passed" if row.passed else "failed"


@dataclass(kw_only=True)
class DrillRow(Row):
    """One failure of one way back."""

    first_heading = "way back"
    first_meaning = "how training comes back after a failure"

    covers: str = identity_column("what comes back")
    way: str = column("how training comes back after a failure", default="")
    failure: str = column(
        "what fails",
        default="",
        heading="failure",
        text=lambda row: DRILLS[row.failure],
        left_aligned=True,
    )
    passed: bool | None = column(
        "whether every rank came to the last step, with the bits that it must have",
        heading="result",
        text=_passed_text,
        left_aligned=True,
        compared=Flag("passed"),
    )
    back: Estimate | None = column(
        "the seconds from the first strike until every rank has done the killed step",
        heading="back",
        unit="s",
    )
    ranks_after: int | None = column("how many ranks train at the end", heading="ranks after")
    same_as: str = column(
        "the undisturbed run whose bits the state has at the end: that of as many ranks, or the "
        "one from which the dead ranks take leave at the same steps",
        heading="same bits as",
        default="",
        left_aligned=True,
    )
    expected: str = column("the undisturbed run whose bits it must have", default="")

    @property
    def verdict(self) -> str:
        """The row in one word."""
        return _passed_text(self)

    @property
    def subject(self) -> str:
        """The way, and what fails."""
        return f"'{WAYS[self.way].in_words}' where {DRILLS[self.failure]}"

    def title(self, several_frameworks: bool) -> str:
        """Return the way."""
        framework = f"{self.framework} " if several_frameworks else ""
        return f"{framework}{WAYS[self.way].in_words}"


def rows(items: Sequence[Wanted], records: RunRecords) -> list[DrillRow]:
    """Derive the row of every case."""
    return [_row(item, records) for item in items]


def _row(item: Wanted, records: RunRecords) -> DrillRow:
    row = DrillRow(**identity(item))
    row.way = item.case.settings["way"]
    row.failure = item.case.settings["failure"]
    if row.fail(records.failures(item.case.id)):
        return row
    record = records.last(DrillRecord, item.case.id)
    if record is None:
        row.interrupt()
        return row
    row.passed = record.passed if record.is_certain else None
    row.ranks_after = record.ranks_after
    row.same_as = record.same_as
    row.expected = record.expected
    row.reason = printable(record.reason)
    if record.as_meant and not record.is_certain:
        row.reason = "the undisturbed run broke, so the bits could not be compared"
    if record.back_ns is not None:
        row.back = single_value(record.back_ns / 1e9)
    return row
