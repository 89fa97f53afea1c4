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
    """The time of making a method and opening it on the state.

    A process that saves does this once, and no other time contains it. `open_ns` is that of the
    slowest rank. If a process was started again, its last record counts. `read_bytes` were read by
    system calls meanwhile, over all ranks.
    """

    kind: Literal["opened"]
    case: str
    process: int
    rank: int
    open_ns: int
    ranks: int = 1
    read_bytes: int = 0  # 0 in older records


@dataclass(frozen=True)
class SaveRecord(SampleRecord):
    """One timed save of one rank.

    The stall is `save_ns` + `staged_ns`. The durable time is the sum of all four phases. The stall
    is compared with `memory_copy_ns`: the mean of two single-threaded copies in memory of as many
    bytes as this rank's state has, one before and one after the save; 0 in older records.
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
    quiet: bool | None  # true if the device stood still before; None where there is none that tells
    usage: Usage
    started_at_s: float
    # not None where rank 0 speaks for all: the stall is then the longest, and the end the last one
    spread: RankSpread | None = None
    file_count: int = 0  # of all files, where `files` has only the largest; else 0
    memory_copy_ns: int = 0
    # what others wrote to the device meanwhile; None where none tells, and in older records
    foreign_bytes: int | None = None
    # what the save took of the device's memory at its peak; None where the framework does not say
    device_extra_bytes: int | None = None

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "save"


PAIRS = 6
"""Pairs of updates that show a wait. Fewer show that the first difference was chance."""


@dataclass(frozen=True)
class UpdatesRecord(Record):
    """Updates of the optimizer in pairs: one beside a raw write, and one after `staged` of a save.

    The times are the slowest rank's. There is one pair, or more where the first one differed. There
    are PAIRS of them where most of them did. In the first pair, the one beside a raw write is the
    longest of the process.
    """

    kind: Literal["updates"]
    case: str
    process: int
    rank: int
    beside_raw_ns: tuple[int, ...]
    after_staged_ns: tuple[int, ...]
    ranks: int = 1

    def __post_init__(self) -> None:
        if len(self.beside_raw_ns) != len(self.after_staged_ns):
            raise ValueError("updates come in pairs")


RECORDS = (
    OpenedRecord,
    SaveRecord,
    UpdatesRecord,
)
