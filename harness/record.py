"""What was measured: the records that workers write, one JSON object a line. Standard library only: they cross the border.

Durations are nanoseconds of the worker's monotonic clock (`_ns`), sizes are bytes (`_bytes`), instants of the day are seconds since
the epoch (`_at_s`). A record states facts; every rate, ratio and verdict is derived on reading.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA = 1
SCHEMA_HISTORY = {
    1: "first schema: worker, calibration, overhead, state, save, kept, load, verified, syscalls and failure records",
}

BackingState = Literal["backed", "unknown", "physical"]
CacheState = Literal["cold", "warm", "unknown"]
Durability = Literal["at return", "at finished", "never", "unknown"]
Status = Literal["failed", "unsupported", "skipped"]


@dataclass(frozen=True)
class Backing:
    """Evidence that the kernel could hand out memory at once: how fast a helper process first touched it just before.

    `physical` means that no hypervisor is there to take pages back.
    """

    state: BackingState
    touched_bytes: int
    bytes_per_s: float
    tries: int


@dataclass(frozen=True)
class Ceilings:
    """The raw transfers of the same bytes just before and after a sample. `direct` is false where the page cache took part."""

    bytes: int
    before_ns: int
    after_ns: int
    direct: bool

    @property
    def spread(self) -> float:
        """The difference of the two as a fraction of their mean."""
        return abs(self.before_ns - self.after_ns) / (0.5 * (self.before_ns + self.after_ns))


@dataclass(frozen=True)
class Usage:
    """What the sample cost besides time. Peaks are resident bytes above the start; processor time is the process's own."""

    rss_before_bytes: int
    peak_rss_bytes: int
    children_peak_bytes: int
    cpu_user_ns: int
    cpu_system_ns: int
    minor_faults: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class WorkerRecord:
    """The process that measured: one a job and rank."""

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


@dataclass(frozen=True)
class SweepPoint:
    """One block size and depth of the calibration sweep; the best of its tries."""

    operation: Literal["write", "read"]
    block_bytes: int
    depth: int
    bytes_per_s: float


@dataclass(frozen=True)
class CalibrationRecord:
    """How the scratch directory takes direct I/O. `reason` says why `direct` is false."""

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


@dataclass(frozen=True)
class OverheadRecord:
    """The harness's own cost: an empty method through the same measured sequence, and the memory the harness holds."""

    kind: Literal["overhead"]
    job: str
    process: int
    rank: int
    empty_save_ns: tuple[int, ...]
    harness_peak_bytes: int


@dataclass(frozen=True)
class StateRecord:
    """The state a case saves: uncompressed bytes by role, what the method covers of it, and the copies its stall stands beside."""

    kind: Literal["state"]
    case: str
    process: int
    rank: int
    leaves: int
    covered_leaves: int
    state_bytes: int
    covered_bytes: int
    bytes_by_role: dict[str, int]
    memory_copy_ns: int  # one single-threaded copy of the state in memory, median of the tries
    device_copy_ns: int  # one copy off the device through pinned memory; 0 on the CPU


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint, by its path inside it."""

    name: str
    bytes: int


@dataclass(frozen=True)
class SaveRecord:
    """One timed save of one rank. Stall = `save_ns` + `staged_ns`; durable = all four phases."""

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


@dataclass(frozen=True)
class LoadRecord:
    """One timed load of one rank, in a process that did not save, verified leaf by leaf afterwards."""

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
    resident_fraction: float  # of the checkpoint's pages just before the load; -1 where the kernel does not say
    backing: Backing
    quiet: bool | None  # whether the device stood still before; None where it does not tell
    usage: Usage
    started_at_s: float


@dataclass(frozen=True)
class KeptRecord:
    """A save that overlapped a training step came to its end, and its checkpoint waits for the process that loads it."""

    kind: Literal["kept"]
    case: str
    process: int
    rank: int
    leaves: int


@dataclass(frozen=True)
class VerifiedRecord:
    """The consistency pass held: the file of a save that overlapped a training step restored exactly the saved step."""

    kind: Literal["verified"]
    case: str
    process: int
    rank: int
    covered_leaves: int
    uncovered_leaves: int


@dataclass(frozen=True)
class SyscallsRecord:
    """What one save did at the system calls, and so when its checkpoint is safe against a power loss."""

    kind: Literal["syscalls"]
    case: str
    durability: Durability
    data_durability: Durability  # over file contents alone: what holds where names survive by themselves
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
class FailureRecord:
    """A case that gave no number, where it stood and why."""

    kind: Literal["failure"]
    case: str
    process: int
    rank: int
    status: Status
    phase: str
    reason: str


Record = (
    WorkerRecord
    | CalibrationRecord
    | OverheadRecord
    | StateRecord
    | SaveRecord
    | LoadRecord
    | KeptRecord
    | VerifiedRecord
    | SyscallsRecord
    | FailureRecord
)


def to_line(record: Record) -> str:
    """Return the record as one line of JSON, newline included, with the schema it follows."""
    fields: dict[str, Any] = {"schema": SCHEMA} | asdict(record)
    return json.dumps(fields, separators=(",", ":")) + "\n"
