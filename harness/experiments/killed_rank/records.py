"""The records of killed ranks: each kill, what it left, and the end of both stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.experiments.faults.records import Verdict
from harness.wire.records import Record, StageRecord

Fate = Literal["finished", "raised", "hung", "died"]
"""The ends of the save of a rank that was not killed.

It reported success, raised an error, was still at work when the time limit came, or its process
ended by itself.
"""

UNDISTURBED = 0
"""The number of the save in which nobody is killed."""


@dataclass(frozen=True)
class RankKillRecord(Record):
    """A rank that was killed in a save, and how the save of the other one went on.

    `in_words` says who was killed before which call. `victim` is the rank that was killed, and
    `is_caller` tells whether the victim made that call. `after_ns` is the time from the kill to the
    end of the other rank's save, or to the time limit. It is 0 where that rank had ended its save
    before, and None where its process died by itself. `said` is its error, or where it hung.
    """

    kind: Literal["rank-kill"]
    case: str
    process: int
    rank: int
    number: int
    in_words: str
    victim: int
    is_caller: bool
    fate: Fate
    after_ns: int | None
    said: str


@dataclass(frozen=True)
class RankLeftRecord(Record):
    """The result of new ranks that load from the directory of a killed rank, all together."""

    kind: Literal["rank-left"]
    case: str
    process: int
    rank: int
    number: int
    verdict: Verdict
    got: str
    reason: str


@dataclass(frozen=True)
class RanksStruckRecord(StageRecord):
    """The end of all kills of one method.

    `changes` counts the calls of an undisturbed save that change a directory, and `writes` those
    that write bytes. `not_reached` counts the saves that ended before the kill that was ordered.
    """

    kind: Literal["ranks-struck"]
    case: str
    process: int
    rank: int
    changes: int
    writes: int
    save_ns: int
    kills: int
    not_reached: int

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "strike"


@dataclass(frozen=True)
class RanksResumedRecord(StageRecord):
    """The end of all loads of what killed ranks have left."""

    kind: Literal["ranks-resumed"]
    case: str
    process: int
    rank: int

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "resume"


RECORDS = (RankKillRecord, RankLeftRecord, RanksStruckRecord, RanksResumedRecord)
