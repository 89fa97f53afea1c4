"""The records of struck saves: how one was recorded, and what each strike left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import Record, StageRecord

Verdict = Literal["safe", "refused", "silent", "lost"]
Strike = Literal[
    "kill",
    "power loss",
    "damage",
    "error",
    "next save",
    "real kill",
    "preemption",
    "power loss on ext4",
    "power loss on xfs",
    "power loss on btrfs",
    "killed rank",
]

ON_DISK: dict[str, Strike] = {
    "ext4": "power loss on ext4",
    "xfs": "power loss on xfs",
    "btrfs": "power loss on btrfs",
}
"""The strikes of a real file system on a logged disk, by its name."""

# The kinds of damage. The part of the file follows the first one, such as "header".
FLIPPED = "flipped bit in "
ZEROED = "zeroed page"
CUT = "cut"
MISSING = "missing"
SWAPPED = "swapped"
DANGLING = "dangling link"

UNHANDLED = "SIGTERM after save had returned, without a handler"
WORST_FIRST: tuple[Verdict, ...] = ("lost", "silent", "refused", "safe")


@dataclass(frozen=True)
class RecordedRecord(StageRecord):
    """One save whose system calls and bytes are recorded, beside a complete checkpoint."""

    kind: Literal["recorded"]
    case: str
    process: int
    rank: int
    files: int
    file_bytes: int

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "record"


@dataclass(frozen=True)
class StruckRecord(Record):
    """A directory that a strike leaves, and what a resuming script gets from it.

    `instant` is the number of steps of the save that were done, and None where nobody counted.
    `again` is the number of an earlier state with the same files, which was tried in its place.
    `got` is the checkpoint whose bytes came back, and empty for none. `said` is what a save that
    was struck for real said of itself, and `succeeded` whether it reported success. `damage_kind`
    groups damages, such as "zeroed page", and is empty for every other strike. `stray_files` are
    the names that a failed save has left beside the checkpoints, and `stray_processes` its living
    processes, once the next save has ended and the method is closed.
    """

    kind: Literal["struck"]
    case: str
    process: int
    rank: int
    number: int
    strike: Strike
    instant: int | None
    in_words: str
    verdict: Verdict
    got: str
    reason: str
    again: int | None = None
    said: str = ""
    succeeded: bool | None = None
    damage_kind: str = ""
    stray_files: tuple[str, ...] = ()
    stray_processes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TriedRecord(StageRecord):
    """The end of all states of one save.

    `steps` is the number of its calls that changed or flushed anything. `not_seen` says why no
    kills and power losses could be built from the recording; empty where they could.
    `singles_left_out` counts the losses of a single name or file that the limit has left out, and
    is None in older runs, which did not count them.
    """

    kind: Literal["tried"]
    case: str
    process: int
    rank: int
    steps: int
    instants: int
    states: int
    not_seen: str
    singles_left_out: int | None = None

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "try"


@dataclass(frozen=True)
class ErrorsRecord(StageRecord):
    """The end of all saves of one method under errors.

    `hit` counts the errors that hit a call. `not_done` says why none was tried; empty where they
    were. The memory of the process grew by `grew_bytes` while `repeated` of them followed the first
    one, beyond what as many undisturbed saves add. They are those of the last process, where a save
    has ended others.
    """

    kind: Literal["errors"]
    case: str
    process: int
    rank: int
    hit: int
    not_done: str = ""
    grew_bytes: int = 0
    repeated: int = 0

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "fail"


@dataclass(frozen=True)
class KilledRecord(Record):
    """A save that was really killed, before its change number `change`.

    Where that is 0, it was killed at a random moment, which has a number too. `difference` is the
    first thing in which the files differ from those that the log of its calls predicts, or why the
    log predicts none. It is empty where all are equal, and where `is_predicted` is false. `again`
    counts the same kills before.
    """

    kind: Literal["killed"]
    case: str
    process: int
    rank: int
    change: int
    difference: str
    moment: int = 0
    is_predicted: bool = True
    again: int = 0


@dataclass(frozen=True)
class KillsRecord(StageRecord):
    """The end of all real kills of one method.

    `kills` counts those that were ordered. Each that was reached has a record of its own.
    `not_done` says why there were none, or fewer; empty where nothing went wrong.
    """

    kind: Literal["kills"]
    case: str
    process: int
    rank: int
    kills: int
    not_done: str = ""

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "kill"


@dataclass(frozen=True)
class PreemptedRecord(StageRecord):
    """The nanoseconds from a SIGTERM to a checkpoint that is flushed to the disk.

    The one came while training, the other in the middle of a save. A time is None where the grace
    of `grace_s` seconds was over before that. Older runs gave as much time as a save took, so
    their `grace_s` is None.
    """

    kind: Literal["preempted"]
    case: str
    process: int
    rank: int
    training_ns: int | None
    saving_ns: int | None
    grace_s: int | None = None

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "preempt"


@dataclass(frozen=True)
class DisksRecord(StageRecord):
    """The end of all power losses of one method on real file systems.

    `block_writes` counts what each file system wrote to its disk from the begin of the save until
    some seconds after it, and `losses` counts the power losses that were built of them. Many of
    these leave the same directory, which is stored once. `not_done` has the reasons of those on
    which no power was cut.
    """

    kind: Literal["disks"]
    case: str
    process: int
    rank: int
    block_writes: dict[str, int]
    losses: dict[str, int]
    not_done: dict[str, str]

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "disk"


RECORDS = (
    RecordedRecord,
    StruckRecord,
    TriedRecord,
    ErrorsRecord,
    KilledRecord,
    KillsRecord,
    PreemptedRecord,
    DisksRecord,
)
