"""The records of the saves that experiment `cost` times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import (
    Backing,
    Ceilings,
    FileEntry,
    RankSpread,
    Record,
    SampleRecord,
    Usage,
)


@dataclass(frozen=True)
class OpenedRecord(Record):
    """A process that saves has made its method and opened it on the state, once for all saves: no other time has that in it.

    `open_ns` is the slowest rank's; of a process that was begun anew, the last record counts.
    """

    kind: Literal["opened"]
    case: str
    process: int
    rank: int
    open_ns: int
    ranks: int = 1


@dataclass(frozen=True)
class SaveRecord(SampleRecord):
    """One timed save of one rank. Stall = `save_ns` + `staged_ns`; durable = all four phases.

    `memory_copy_ns` is what the stall is held against: the mean of two single-threaded copies in
    memory of as many bytes as this rank's state has, one before and one behind the save; 0 in older
    records.
    """

    kind: Literal["save"]
    case: str
    process: int
    rank: int
    index: int
    warmup: bool
    disturbed: bool
    save_ns: int
    staged_ns: int
    finished_ns: int
    sync_ns: int
    ceilings: Ceilings
    covered_bytes: int
    file_bytes: int
    files: tuple[FileEntry, ...]
    backing: Backing
    quiet: bool | None  # whether the device stood still before; None where it does not tell
    usage: Usage
    started_at_s: float
    spread: RankSpread | None = None  # rank 0 speaks for all: durations are the last rank's
    file_count: int = 0  # where `files` lists the largest alone; 0 where it lists all
    memory_copy_ns: int = 0

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "save"


RECORDS = (
    OpenedRecord,
    SaveRecord,
)
