"""The records of the content of checkpoint files, and of whether they repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import Record, StageRecord

Pair = Literal["one process", "two processes"]


@dataclass(frozen=True)
class RolePayload:
    """The size of a sample of one role's bytes after deflate, and after a byte shuffle and deflate.

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
    """The bytes of the state itself after some steps of training, before any format has them."""

    kind: Literal["payload"]
    case: str
    process: int
    rank: int
    steps: int
    roles: tuple[RolePayload, ...]


@dataclass(frozen=True)
class FileContent:
    """One file of a checkpoint, and the bytes of each role that its format lists.

    They are counted as stored, and without compression.
    """

    name: str
    bytes: int
    entries: int
    stored_by_role: dict[str, int]
    raw_by_role: dict[str, int]


@dataclass(frozen=True)
class InventoryRecord(Record):
    """A checkpoint of the state after some steps of training, file by file.

    `device_written_bytes` counts everything that reached the block device while the checkpoint was
    written and flushed, including the file system's own journal. It is None where there is no
    device that tells.
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
    """The difference of two files of one name.

    It has the count of differing bytes, the first ranges [start, stop), and the causes that their
    bytes show.
    """

    name: str
    first_bytes: int
    second_bytes: int
    differing_bytes: int
    range_count: int
    ranges: tuple[tuple[int, int], ...]
    causes: tuple[str, ...]


@dataclass(frozen=True)
class RepeatRecord(StageRecord):
    """The comparison of two checkpoints of one state, file by file.

    `only_first` and `only_second` are names that the other checkpoint lacks. `renamed` counts files
    whose content the other checkpoint has under another name. `hashing` is "fixed" if Python's
    hashes of text were the same in every process, and "random" if they differed.
    """

    kind: Literal["repeat"]
    case: str
    process: int
    rank: int
    pair: Pair
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
