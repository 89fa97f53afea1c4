"""The records of what checkpoint files hold and whether they repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import Record, StageRecord


@dataclass(frozen=True)
class RolePayload:
    """How far a sample of the bytes of one role can be compressed: by deflate, and by deflate after a byte shuffle.

    The shuffle puts the first bytes of all elements together, then the second ones, as HDF5's and
    Blosc's filters do.
    """

    role: str
    bytes: int
    sampled_bytes: int
    deflated_bytes: int
    shuffled_bytes: int


@dataclass(frozen=True)
class PayloadRecord(Record):
    """What the state itself is like after some steps of training, before any format has it."""

    kind: Literal["payload"]
    case: str
    process: int
    rank: int
    steps: int
    roles: tuple[RolePayload, ...]


@dataclass(frozen=True)
class FileContent:
    """One file of a checkpoint, and what its format says is in it, by role: bytes as stored and without compression."""

    name: str
    bytes: int
    entries: int
    stored_by_role: dict[str, int]
    raw_by_role: dict[str, int]


@dataclass(frozen=True)
class InventoryRecord(Record):
    """A checkpoint of the state after some steps of training, file by file.

    `device_written_bytes` counts everything that reached the block device while it was written and
    flushed, the file system's own journal included; None where the device does not tell.
    """

    kind: Literal["inventory"]
    case: str
    process: int
    rank: int
    steps: int
    state_bytes: int
    covered_bytes: int
    file_bytes: int
    device_written_bytes: int | None
    files: tuple[FileContent, ...]


@dataclass(frozen=True)
class FileDifference:
    """How two files of one name differ: bytes at their places, the first ranges [start, stop), and what was found in them."""

    name: str
    first_bytes: int
    second_bytes: int
    differing_bytes: int
    range_count: int
    ranges: tuple[tuple[int, int], ...]
    causes: tuple[str, ...]


@dataclass(frozen=True)
class RepeatRecord(StageRecord):
    """Whether two checkpoints of one state are the same files.

    `only_first` and `only_second` are names that the other lacks.

    `renamed` counts files whose content the other checkpoint has under another name. `hashing` says
    whether Python's hashes of text were those of every process or differed from process to process.
    """

    kind: Literal["repeat"]
    case: str
    process: int
    rank: int
    pair: Literal["one process", "two processes"]
    hashing: Literal["random", "fixed"]
    identical: bool
    files: int
    renamed: int
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    differences: tuple[FileDifference, ...]

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "inspect" if self.pair == "one process" else "repeat"


RECORDS = (
    PayloadRecord,
    InventoryRecord,
    RepeatRecord,
)
