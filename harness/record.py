"""What was measured: the records that workers write, one JSON object a line.

Standard library only: they cross the border.

Durations are nanoseconds of the worker's monotonic clock (`_ns`), sizes are bytes (`_bytes`),
instants of the day are seconds since the epoch (`_at_s`). A record states facts; every rate, ratio
and verdict is derived on reading.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA = 7
SCHEMA_HISTORY = {
    1: "first schema: worker, calibration, overhead, state, save, kept, load, verified, syscalls and failure records",
    2: "payload, inventory, repeat and trajectory records; the others as before",
    3: "training, straight, interrupt, resume and reshard records; a worker's node; one record may speak for many ranks",
    4: "a load may be from memory",
    5: "resume and reshard records may speak for many ranks; the largest distance of all leaves that differ first",
    6: "a save has the copies in memory beside it",
    7: "opened records; ceilings are taken as samples are, after memory has been backed",
}

BackingState = Literal["backed", "unknown", "physical"]
CacheState = Literal["cold", "warm", "unknown", "memory"]
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
    """The raw transfers of the same bytes just before and after a sample.

    `direct` is false where the page cache took part.

    They are `settled` where memory was backed before each of them, as it is before samples; in
    records before schema 7 it was not.
    """

    bytes: int
    before_ns: int
    after_ns: int
    direct: bool
    settled: bool = False

    @property
    def spread(self) -> float:
        """The difference of the two as a fraction of their mean."""
        return abs(self.before_ns - self.after_ns) / (0.5 * (self.before_ns + self.after_ns))


@dataclass(frozen=True)
class Usage:
    """What the sample cost besides time.

    Peaks are resident bytes above the start; processor time is the process's own.
    """

    rss_before_bytes: int
    peak_rss_bytes: int
    children_peak_bytes: int
    cpu_user_ns: int
    cpu_system_ns: int
    minor_faults: int
    read_bytes: int
    written_bytes: int


PERCENTILES = (0, 10, 50, 90, 99, 100)


@dataclass(frozen=True)
class Spread:
    """Values of all ranks in six numbers: their `PERCENTILES`."""

    percentiles: tuple[float, ...]
    slowest_rank: int


@dataclass(frozen=True)
class RankSpread:
    """What a record says of ranks that wrote none of their own: how long each took, and how many bytes each wrote."""

    ranks: int
    duration_ns: Spread
    written_bytes: Spread


@dataclass(frozen=True)
class WorkerRecord:
    """The process that measured: one a job and rank.

    `node` is Slurm's name of its node, else the host's; "" in older records.
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
    """One block size and depth of the calibration sweep; the median of its tries."""

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
    rounds: int = 0  # in which all settings took turns; 0 in records of before they did


@dataclass(frozen=True)
class OverheadRecord:
    """The harness's own cost: an empty method through the same measured sequence, and the memory the harness holds."""

    kind: Literal["overhead"]
    job: str
    process: int
    rank: int
    empty_save_ns: tuple[int, ...]
    harness_peak_bytes: int
    ranks: int = 1  # for how many it speaks: rank 0 writes it for all where they are many


@dataclass(frozen=True)
class StateRecord:
    """The state a case saves: uncompressed bytes by role, what the method covers of it, and how long copies of it take."""

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
    ranks: int = 1


@dataclass(frozen=True)
class OpenedRecord:
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
class FileEntry:
    """One file of a checkpoint, by its path inside it."""

    name: str
    bytes: int


@dataclass(frozen=True)
class SaveRecord:
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
    # of the checkpoint's pages just before the load; -1 where the kernel does not say
    resident_fraction: float
    backing: Backing
    quiet: bool | None  # whether the device stood still before; None where it does not tell
    usage: Usage
    started_at_s: float
    spread: RankSpread | None = None  # rank 0 speaks for all: durations are the last rank's


@dataclass(frozen=True)
class KeptRecord:
    """A save that overlapped a training step came to its end, and its checkpoint waits for the process that loads it."""

    kind: Literal["kept"]
    case: str
    process: int
    rank: int
    leaves: int
    ranks: int = 1


@dataclass(frozen=True)
class VerifiedRecord:
    """The consistency pass held: the file of a save that overlapped a training step restored exactly the saved step."""

    kind: Literal["verified"]
    case: str
    process: int
    rank: int
    covered_leaves: int
    uncovered_leaves: int
    ranks: int = 1


@dataclass(frozen=True)
class SyscallsRecord:
    """What one save did at the system calls, and so when its checkpoint is safe against a power loss."""

    kind: Literal["syscalls"]
    case: str
    durability: Durability
    # over file contents alone: what holds where names survive by themselves
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
class RepeatRecord:
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

    `losses` has the loss of every step's forward pass. `forward` samples the buffers after the
    first forward and backward pass, `updated` every weight and optimizer slot after the first step.
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
class TrainingRecord:
    """A block of training with checkpoints on one rank, between two blocks of the same steps without any.

    At the start of every `every` steps the state is saved; the save's `finished` is waited for
    before the next one, and at the block's end. `save_ns`, `staged_ns` and `finished_ns` have one
    value a checkpoint; `finished_ns` is what the loop waits there: back-pressure. `step_ns` and
    `plain_step_ns` have one value a step, without what the loop waits for a save. `sync_ns` is what
    making the checkpoints durable still takes after the block: nothing, for methods that flush.
    """

    kind: Literal["training"]
    case: str
    process: int
    rank: int
    index: int
    warmup: bool
    disturbed: bool
    every: int
    checkpoints: int
    plain_before_ns: int
    plain_after_ns: int
    block_ns: int
    save_ns: tuple[int, ...]
    staged_ns: tuple[int, ...]
    finished_ns: tuple[int, ...]
    step_ns: tuple[int, ...]
    plain_step_ns: tuple[int, ...]
    sync_ns: int
    covered_bytes: int
    file_bytes: int
    usage: Usage
    started_at_s: float
    spread: RankSpread | None = None


@dataclass(frozen=True)
class StraightRecord:
    """A training run without interruption, against which others are held."""

    kind: Literal["straight"]
    case: str
    process: int
    rank: int
    losses: tuple[float, ...]
    ranks: int = 1  # for how many it speaks; the losses are those of its own part of the batch


@dataclass(frozen=True)
class InterruptRecord:
    """The same run up to its checkpoint, after which the process was killed."""

    kind: Literal["interrupt"]
    case: str
    process: int
    rank: int
    at_step: int
    losses: tuple[float, ...]
    file_bytes: int
    ranks: int = 1


@dataclass(frozen=True)
class Divergence:
    """How far a leaf is from that of the straight run.

    `max_ulp` counts representable numbers between; None for other types.
    """

    name: str
    role: str
    max_ulp: int | None
    max_difference: float


@dataclass(frozen=True)
class ResumeRecord:
    """A run that went on from a checkpoint in another process (or, from step 0, ran again), held against the straight run.

    `losses` are those of the steps after `at_step`. `diverged_at` is the first step after which a
    leaf differs: `at_step` itself where the load did not restore it, or where the interrupted run
    had not been like the straight one: `restored` says whether the load brought back what that had
    saved. `first` has the leaves that differ there, the farthest first, `first_count` of them in
    all; `final_count` and `final_max_ulp` tell of the last step.
    """

    kind: Literal["resume"]
    case: str
    process: int
    rank: int
    at_step: int
    steps: int
    losses: tuple[float, ...]
    leaves: int
    identical: bool
    diverged_at: int | None
    first: tuple[Divergence, ...]
    first_count: int
    final_count: int
    final_max_ulp: int
    restored: bool | None = None  # None in records that do not tell
    first_roles: tuple[str, ...] = ()
    # over all leaves that differ there; None where none is a floating point, or in older records
    first_max_ulp: int | None = None
    ranks: int = 1


@dataclass(frozen=True)
class ReshardRecord:
    """A checkpoint of one number of ranks, loaded by another and compared whole.

    `left_out` counts leaves of a rank's own.
    """

    kind: Literal["reshard"]
    case: str
    process: int
    rank: int
    saved_ranks: int
    loaded_ranks: int
    replicated_leaves: int
    sharded_leaves: int
    left_out: int
    ranks: int = 1


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
    | OpenedRecord
    | SaveRecord
    | LoadRecord
    | KeptRecord
    | VerifiedRecord
    | SyscallsRecord
    | PayloadRecord
    | InventoryRecord
    | RepeatRecord
    | TrajectoryRecord
    | TrainingRecord
    | StraightRecord
    | InterruptRecord
    | ResumeRecord
    | ReshardRecord
    | FailureRecord
)


def to_line(record: Record) -> str:
    """Return the record as one line of JSON, newline included, with the schema it follows."""
    fields: dict[str, Any] = {"schema": SCHEMA} | asdict(record)
    return json.dumps(fields, separators=(",", ":")) + "\n"
