"""The records that workers write, one JSON object a line.

They cross the process border, so this module needs the standard library only. Durations are
nanoseconds of the worker's monotonic clock (`_ns`), sizes are bytes (`_bytes`), and instants of the
day are seconds since the epoch (`_at_s`). A record states facts. Every rate, ratio and verdict is
derived on reading.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA = 7
SCHEMA_HISTORY = {
    1: (
        "first schema: worker, calibration, overhead, state, save, kept, load, verified, syscalls "
        "and failure records"
    ),
    2: "payload, inventory, repeat and trajectory records; the others as before",
    3: (
        "training, straight, interrupt, resume and reshard records; a worker's node; one record "
        "may speak for many ranks"
    ),
    4: "a load may be from memory",
    5: (
        "resume and reshard records may speak for many ranks; the largest distance of all leaves "
        "that differ first"
    ),
    6: "a save has the copies in memory beside it",
    7: "opened records; ceilings are taken as samples are, after memory has been backed",
}

BackingState = Literal["backed", "unknown", "physical"]
CacheState = Literal["cold", "uncounted", "warm", "unknown", "memory"]
Durability = Literal["at return", "at finished", "never", "unknown"]
Status = Literal["failed", "unsupported", "skipped"]
Weight = Literal["mark", "remark"]


@dataclass(frozen=True)
class Backing:
    """Evidence that the kernel could hand out memory at once.

    It is the rate at which a helper process touched the memory just before. `physical` means that
    there is no hypervisor, which could take pages back.
    """

    state: BackingState
    touched_bytes: int
    bytes_per_s: float
    tries: int


@dataclass(frozen=True)
class Ceilings:
    """The raw transfers of the same bytes just before and after a sample.

    `direct` is false where the page cache took part. They are `settled` where memory was backed
    before each of them, as it is before samples. Before schema 7 it was not.
    """

    bytes: int
    before_ns: int
    after_ns: int
    direct: bool
    settled: bool = False

    def __post_init__(self) -> None:
        if self.before_ns <= 0 or self.after_ns <= 0:
            raise ValueError("a raw transfer takes some time")

    @property
    def spread(self) -> float:
        """Return the difference of the two as a fraction of their mean."""
        return abs(self.before_ns - self.after_ns) / (0.5 * (self.before_ns + self.after_ns))


@dataclass(frozen=True)
class Usage:
    """The cost of a sample besides time.

    `rss_before_bytes` is the resident memory of the process at the start, and `peak_rss_bytes` its
    peak above that. `children_before_bytes` is the resident memory of the child processes at the
    start, and `children_peak_bytes` the sum of the whole peaks of those that are alive at the end.
    A page that several processes share counts for each of them. Processor time is that of the
    process alone. Bytes through the device include those of the children.
    """

    rss_before_bytes: int
    peak_rss_bytes: int
    children_peak_bytes: int
    cpu_user_ns: int
    cpu_system_ns: int
    minor_faults: int
    read_bytes: int
    written_bytes: int
    children_before_bytes: int = 0  # 0 in older records


PERCENTILES = (0, 10, 50, 90, 99, 100)


@dataclass(frozen=True)
class Spread:
    """The values of all ranks in six numbers, which are their `PERCENTILES`."""

    percentiles: tuple[float, ...]
    slowest_rank: int

    def __post_init__(self) -> None:
        if len(self.percentiles) != len(PERCENTILES):
            raise ValueError(f"a spread has {len(PERCENTILES)} percentiles")


@dataclass(frozen=True)
class RankSpread:
    """The durations and bytes of ranks that wrote no record of their own.

    The bytes are those that a rank wrote to the device, or those that it read if it loaded.
    """

    ranks: int
    duration_ns: Spread
    written_bytes: Spread


class Record:
    """One line of a run's records.

    `kind` names the class in JSON, and is the same in all versions.
    """

    kind: str


class StageRecord(Record):
    """A record that a rank writes at the end of a stage, for one case."""

    case: str
    process: int
    rank: int
    ranks: int = 1

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        raise NotImplementedError

    @property
    def reporting_ranks(self) -> range:
        """Return the ranks that the record speaks for. It may speak for many."""
        return range(self.rank, self.rank + self.ranks)


class SampleRecord(StageRecord):
    """A record of one sample. A stage that takes samples is complete when it has enough of them."""

    index: int
    warmup: bool
    disturbed: bool
    spread: RankSpread | None

    @property
    def reporting_ranks(self) -> range:
        """Return the ranks that the record speaks for: all of them where it holds their spread."""
        if self.spread is None:
            return range(self.rank, self.rank + 1)
        return range(self.spread.ranks)


@dataclass(frozen=True)
class WorkerRecord(Record):
    """The process that measured. There is one for each job and rank.

    `node` is Slurm's name of its node, else the host's name; "" in older records.
    """

    kind: Literal["worker"]
    job: str
    process: int
    rank: int
    python: str
    packages: dict[str, str]
    device: str
    pid: int
    threads: int
    started_at_s: float
    cpus: int = 0  # that this process may run on; 0 where it was not asked
    ranks_here: int = 1  # on the same node
    world: int = 1
    framework: str = ""
    node: str = ""


@dataclass(frozen=True)
class SweepPoint:
    """One block size and depth of the calibration sweep, and the median rate of its tries."""

    operation: Literal["write", "read"]
    block_bytes: int
    depth: int
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < math.inf:
            raise ValueError("a raw transfer has a rate above 0")


@dataclass(frozen=True)
class CalibrationRecord(Record):
    """The way the scratch directory takes direct I/O. `reason` says why `direct` is false."""

    kind: Literal["calibration"]
    direct: bool
    reason: str
    bytes: int
    write_block_bytes: int
    write_depth: int
    read_block_bytes: int
    read_depth: int
    counts_device_reads: bool
    points: tuple[SweepPoint, ...]
    rounds: int = 0  # in which all settings took turns; 0 in older records


@dataclass(frozen=True)
class OverheadRecord(Record):
    """The harness's own cost: saves of an empty method, timed like all others, and its memory."""

    kind: Literal["overhead"]
    job: str
    process: int
    rank: int
    empty_save_ns: tuple[int, ...]
    harness_peak_bytes: int
    ranks: int = 1  # the number of ranks it speaks for: rank 0 may write for all


@dataclass(frozen=True)
class StateRecord(Record):
    """The state that a case saves: uncompressed bytes by role, the covered part, copies of it."""

    kind: Literal["state"]
    case: str
    process: int
    rank: int
    leaves: int
    covered_leaves: int
    state_bytes: int
    covered_bytes: int
    bytes_by_role: dict[str, int]
    memory_copy_ns: int  # one single-threaded copy in memory, median of the tries
    device_copy_ns: int  # one copy off the device through pinned memory; 0 on the CPU
    ranks: int = 1
    # A transfer of as many bytes in large pieces, through pinned memory; 0 on the CPU, and in older
    # records.
    to_host_ns: int = 0
    to_device_ns: int = 0


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint, by its path inside it."""

    name: str
    bytes: int


@dataclass(frozen=True)
class LoadRecord(SampleRecord):
    """One timed load of one rank, in a process that did not save. It was verified afterwards.

    Just before, the method was opened. `open_ns` is the time of the slowest rank, and
    `open_read_bytes` were read by system calls meanwhile, over all ranks. Older records have 0.
    """

    kind: Literal["load"]
    case: str
    process: int
    rank: int
    index: int
    warmup: bool
    disturbed: bool
    load_ns: int
    ceilings: Ceilings
    covered_bytes: int
    file_bytes: int
    cache: CacheState
    # the share of the checkpoint's pages in memory just before; -1 where the kernel does not say
    resident_fraction: float
    backing: Backing
    quiet: bool | None  # true if the device stood still before; None where there is none that tells
    usage: Usage
    started_at_s: float
    # not None where rank 0 speaks for all: the durations are then the slowest rank's
    spread: RankSpread | None = None
    loaded_in: str = "load"  # the stage that it belongs to
    open_ns: int = 0
    open_read_bytes: int = 0
    # what others wrote to the device meanwhile; None where none tells, and in older records
    foreign_bytes: int | None = None

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return self.loaded_in


@dataclass(frozen=True)
class KeptRecord(StageRecord):
    """The end of a save across a training step. Its checkpoint waits for the loading process."""

    kind: Literal["kept"]
    case: str
    process: int
    rank: int
    leaves: int
    ranks: int = 1
    saved_in: str = "part"  # the stage that it completes

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return self.saved_in


@dataclass(frozen=True)
class VerifiedRecord(Record):
    """The proof that a save across a training step restored exactly the step that was saved."""

    kind: Literal["verified"]
    case: str
    process: int
    rank: int
    covered_leaves: int
    uncovered_leaves: int
    ranks: int = 1


@dataclass(frozen=True)
class SyscallsRecord(Record):
    """The system calls of one save, and so when its checkpoint is safe against a power loss."""

    kind: Literal["syscalls"]
    case: str
    durability: Durability
    # of file contents alone, for file systems where names survive by themselves
    data_durability: Durability
    reason: str
    writes: int
    write_bytes: int
    write_min_bytes: int
    write_median_bytes: int
    write_max_bytes: int
    direct_writes: int
    fsyncs: int
    syncs: int
    msyncs: int
    renames: int
    files: int
    late_writes: int


@dataclass(frozen=True)
class FailureRecord(Record):
    """A case that gave no number: its phase, and the reason."""

    kind: Literal["failure"]
    case: str
    process: int
    rank: int
    status: Status
    phase: str
    reason: str


@dataclass(frozen=True)
class FindingRecord(Record):
    """Something that a guard saw of a case, and that proves no mistake.

    A mark is a suspicion, and keeps the row out of the headline. A remark only informs. `sentence`
    begins with a small letter, because the name of the row stands before it.
    """

    kind: Literal["finding"]
    case: str
    process: int
    rank: int
    guard: str
    weight: Weight
    sentence: str


@dataclass(frozen=True)
class IsolatedRecord(Record):
    """A case goes on alone in a process, because it has changed the one that it shared.

    So does a case that restores from memory, where processes of the shared one had to be ended.
    What the `others` had come to in this stage of this process does not count. Their records stand
    before this one, and begin anew behind it.
    """

    kind: Literal["isolated"]
    case: str
    process: int
    rank: int
    stage: str
    others: tuple[str, ...]

    def voids(self, record: Record) -> bool:
        """Return whether a record that stands before this one does not count."""
        return (
            isinstance(record, StageRecord)
            and record.case in self.others
            and (record.process, record.stage) == (self.process, self.stage)
        )


RECORDS = (
    WorkerRecord,
    CalibrationRecord,
    OverheadRecord,
    StateRecord,
    LoadRecord,
    KeptRecord,
    VerifiedRecord,
    SyscallsRecord,
    FailureRecord,
    FindingRecord,
    IsolatedRecord,
)
"""The records that no single experiment owns."""


def to_line(record: Record) -> str:
    """Return the record as one line of JSON, newline included, with the schema it follows."""
    fields: dict[str, Any] = {"schema": SCHEMA} | asdict(record)  # type: ignore[call-overload]
    return json.dumps(fields, separators=(",", ":")) + "\n"
