"""The record of one harder failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.experiments.recovery.records import SameAs
from harness.wire.records import StageRecord


@dataclass(frozen=True)
class DrillRecord(StageRecord):
    """The outcome of a failure.

    `back_ns` is the time from the first strike until every rank had done the killed step; None
    where that never was. `ended` says whether every rank came to the last step. `same_as` is the
    undisturbed run whose bits the state has then, and `expected` the one whose bits it must have.
    """

    kind: Literal["drill"]
    case: str
    process: int
    rank: int
    back_ns: int | None
    ended: bool
    ranks_after: int
    same_as: SameAs
    expected: SameAs
    reason: str
    ranks: int = 1
    # whether the failure was the one that the drill is about
    as_meant: bool = True

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "recover"

    @property
    def is_certain(self) -> bool:
        """Return whether anybody knows what came of the failure.

        It must have been the one that was meant. And where training came back, an undisturbed run
        must say which bits it has.
        """
        return self.as_meant and (not self.ended or self.same_as != "unknown")

    @property
    def passed(self) -> bool:
        """Return whether training came back with the bits that it must have."""
        return self.ended and self.back_ns is not None and self.same_as == self.expected


RECORDS = (DrillRecord,)
