"""What was measured: the records that workers write, one JSON object a line. Standard library only: they cross the border.

Durations are nanoseconds of the worker's monotonic clock (`_ns`), sizes are bytes (`_bytes`), instants of the day are seconds since
the epoch (`_at_s`). A record states facts; every rate, ratio and verdict is derived on reading.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA = 2
SCHEMA_HISTORY = {
    1: "first schema: worker, calibration, overhead, state, save, kept, load, verified, syscalls and failure records",
    2: "payload, inventory, repeat and trajectory records; the others as before",
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
    """The process that measured: one a job and rank. `node` is Slurm's name of its node, else the host's; "" in older records."""

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
    node: str = ""


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
class RolePayload:
    """How far a sample of the bytes of one role can be compressed: by deflate, and by deflate after a byte shuffle.

    The shuffle puts the first bytes of all elements together, then the second ones, as HDF5's and Blosc's filters do.
    """

    role: str
    bytes: int
    sampled_bytes: int
    deflated_bytes: int
    shuffled_bytes: int


@dataclass(frozen=True)
class PayloadRecord:
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
class InventoryRecord:
    """A checkpoint of the state after some steps of training, file by file.

    `device_written_bytes` counts everything that reached the block device while it was written and flushed, the file system's own
    journal included; None where the device does not tell.
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
class RepeatRecord:
    """Whether two checkpoints of one state are the same files. `only_first` and `only_second` are names that the other lacks.

    `renamed` counts files whose content the other checkpoint has under another name. `hashing` says whether Python's hashes of text
    were those of every process or differed from process to process.
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


@dataclass(frozen=True)
class ExtraLeaf:
    """A leaf that the framework has beyond those that every framework has: a counter, a random generator, the position."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LeafSample:
    """A leaf in a few numbers: its root mean square, and elements evenly spaced over its canonical layout, both ends included."""

    name: str
    rms: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class TrajectoryRecord:
    """A few steps of training without dropout, from the workload's own first weights and data.

    `losses` has the loss of every step's forward pass. `forward` samples the buffers after the first forward and backward pass,
    `updated` every weight and optimizer slot after the first step.
    """

    kind: Literal["trajectory"]
    case: str
    process: int
    rank: int
    leaves: int  # those that every framework has
    extra: tuple[ExtraLeaf, ...]
    losses: tuple[float, ...]
    forward: tuple[LeafSample, ...]
    updated: tuple[LeafSample, ...]


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
    | PayloadRecord
    | InventoryRecord
    | RepeatRecord
    | TrajectoryRecord
    | FailureRecord
)


def to_line(record: Record) -> str:
    """Return the record as one line of JSON, newline included, with the schema it follows."""
    fields: dict[str, Any] = {"schema": SCHEMA} | asdict(record)
    return json.dumps(fields, separators=(",", ":")) + "\n"
