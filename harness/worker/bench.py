"""What all trials of one job share: the state, the folders, the ceilings, and the care taken before a clock starts."""

from __future__ import annotations

import contextlib
import gc
import importlib
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adapters.base import Coverage, Framework, Leaf, Method, Place, RankLocal, Replicated
from harness.experiments.cost.records import OpenedRecord, SaveRecord
from harness.experiments.reshard.records import ReshardRecord
from harness.experiments.resume.records import InterruptRecord, StraightRecord
from harness.experiments.train.records import TrainingRecord
from harness.wire.case import Case, Job, Task
from harness.wire.folders import Folders
from harness.wire.records import (
    PERCENTILES,
    Backing,
    Ceilings,
    KeptRecord,
    LoadRecord,
    OverheadRecord,
    RankSpread,
    Spread,
    StateRecord,
    VerifiedRecord,
)
from harness.worker import storage
from harness.worker.backing import Backer
from harness.worker.ceiling import Ceiling, median_ns
from harness.worker.clock import now_ns
from harness.worker.output import Output
from harness.worker.verify import Digests, Scope, digests
from harness.worker.world import World
from workloads import Workload

CEILING_AGE_LIMIT_NS = 5_000_000_000
DISTURBED_ABOVE = 0.10
_COPY_TRIES = 3
_OTHERS_END_S = 1.5
_FILES_AT_MOST = 16  # that one record for many ranks lists
_TEXT_AT_MOST = 500  # characters of an error
_BACKED_COPIES = 3  # page cache, snapshot, serialization buffer
_BACKED_EXTRA_BYTES = 64 << 20

Sample = SaveRecord | LoadRecord | TrainingRecord
Alike = (
    OverheadRecord
    | StateRecord
    | OpenedRecord
    | KeptRecord
    | VerifiedRecord
    | StraightRecord
    | InterruptRecord
    | ReshardRecord
)

Entries = list[tuple[int, Task]]
"""Tasks with their indices in the job."""

T = TypeVar("T")
ResultT = TypeVar("ResultT")


class BackgroundError(Exception):
    """A thread of the method died, and neither `staged` nor `finished` said so."""


@dataclass
class Bench:
    """The surroundings of a job's trials."""

    job: Job
    world: World
    output: Output
    place: Place
    framework: Framework[Any]
    ceiling: Ceiling
    backer: Backer
    folders: Folders
    workload: Workload | None = None
    state: Any = None
    thread_errors: list[str] = field(default_factory=list)
    _digests: Digests | None = None

    def method(self, case: Case) -> Method[Any]:
        """Make the case's method, and open it on the state."""
        self.output.enter("open")
        memory = Path(self.job.memory) / case.id if self.job.memory else None
        place = replace(self.place, memory=memory)
        method: Method[Any] = load_class(case.method_path)(
            place, self.framework, dict(case.options)
        )
        method.open(self.state)
        return method

    def scope(self, case: Case) -> Scope:
        """Which leaves the case's method covers on this rank."""
        return Scope(Coverage(case.covers), case.rank_local, self.world.size)

    def adopt(self, workload: Workload, seed: int) -> None:
        """Build the workload's state, in place of whatever state there was."""
        self.drop_state()
        self.forget_digests()
        self.workload = workload
        self.state = self.framework.build(workload, seed)

    def drop_state(self) -> None:
        """Let go of the state's memory."""
        self.state = None
        # a framework's state may hold itself in cycles, and was frozen with everything else
        gc.unfreeze()
        gc.collect()

    def rebuild(self, seed: int, steps: int) -> None:
        """Make the state anew."""
        assert self.workload is not None
        self.adopt(self.workload, seed)
        self.train(steps)

    def digests(self) -> Digests:
        """The digests of the state as it is; computed once for as long as nobody says that it has changed."""
        if self._digests is None:
            self._digests = digests(self.framework.leaves(self.state))
        return self._digests

    def forget_digests(self) -> None:
        """Say that the state changes now."""
        self._digests = None

    def rebuild_target(self) -> None:
        """Make the state anew for a load: another seed and another number of steps than the saved ones."""
        self.rebuild(self.job.seed + 1, 1)

    def move(self, names: Iterable[str]) -> None:
        """Assign other bytes to these leaves.

        A rank's shard may be one that no step changes: Adam's moments of an embedding's rows whose
        tokens do not occur stay zero.
        """
        wanted = set(names)
        leaves = (leaf for leaf in self.framework.leaves(self.state) if leaf.name in wanted)
        others = {leaf.name: _other_bytes(leaf.data) for leaf in leaves}
        self.forget_digests()
        if others:
            self.framework.assign(self.state, others)

    def train(self, steps: int = 1) -> None:
        """Take training steps, untimed."""
        self.forget_digests()
        for _ in range(steps):
            self.framework.gradients(self.state)
            self.framework.update(self.state)
        self.framework.synchronize(self.state)

    def fresh(self, parent: Path) -> Path:
        """Return the path for a checkpoint in an empty parent directory."""
        if self.world.rank == 0:
            storage.remove_tree(parent)
            parent.mkdir(parents=True)
        self.world.barrier()
        return parent / "checkpoint"

    def clear(self, parent: Path) -> None:
        """Remove a checkpoint once every rank has done with it."""
        self.world.barrier()
        if self.world.rank == 0:
            storage.remove_tree(parent)

    def settle(self, size_bytes: int) -> tuple[bool | None, Backing]:
        """Quiet the disk, collect garbage and have the kernel own enough backed memory for a sample of `size_bytes`."""
        gc.collect()
        self.framework.synchronize(self.state)
        quiet = storage.wait_until_quiet(self.folders.scratch)
        return quiet, self.backer.back(
            _BACKED_COPIES * size_bytes // self.world.size + _BACKED_EXTRA_BYTES
        )

    def write_alike(self, record: Alike) -> None:
        """Write what every rank has to say alike; in a large world rank 0 does it for all, once all have come here."""
        if self.world.size <= self.job.summary_above:
            self.output.write(record)
            return
        self.world.barrier()
        if self.world.rank == 0:
            self.output.write(replace(record, ranks=self.world.size))

    def write_sample(self, record: Sample) -> None:
        """Write a rank's sample; in a large world, rank 0 writes that of the last rank, with the spread over all."""
        if self.world.size <= self.job.summary_above:
            self.output.write(record)
            return
        ranks = self.world.gather(record)
        if ranks is not None:
            self.output.write(summed_up(ranks))

    def attempt(
        self,
        entries: Sequence[tuple[int, T]],
        action: Callable[[T], ResultT],
        repair: Callable[[], None] | None = None,
    ) -> list[tuple[int, ResultT]]:
        """Act on each entry, and return the results with their task indices.

        An entry that fails becomes a record, and the others go on. `repair` is called after each
        failure, where a failure can spoil what the entries share.
        """
        done = []
        for index, entry in entries:
            self.output.task(index)
            try:
                done.append((index, action(entry)))
            except (Exception, SystemExit) as error:
                record_failure(self.output, self.world, [self.job.tasks[index]], error)
                self.thread_errors.clear()
                if repair is not None:
                    repair()
                storage.remove_tree(self.folders.trial)
        return done

    def raise_thread_errors(self) -> None:
        """Raise what a background thread died of."""
        if self.thread_errors:
            raise BackgroundError(f"exception in a background thread: {self.thread_errors.pop(0)}")

    def watch_threads(self) -> None:
        """Remember exceptions that end a thread; Python would only print them."""

        def remember(died: threading.ExceptHookArgs) -> None:
            self.thread_errors.append(
                describe(died.exc_value) if died.exc_value else died.exc_type.__name__
            )

        threading.excepthook = remember


def load_class(path: str) -> Any:
    """Import "package.module:Class" and return the class."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class Fence:
    """Ceilings of one direction that alternate with samples, C S C S C, so that every sample stands between two.

    Each is taken as samples are, on a quiet disk and after memory has been backed: the helper that
    touches it leaves the caches to its own pages, and what follows it runs a little slower.
    """

    def __init__(self, bench: Bench, operation: str) -> None:
        self._settle = bench.settle
        self._transfer_ns = (
            bench.ceiling.write_ns if operation == "write" else bench.ceiling.read_ns
        )
        self._direct = bench.ceiling.storage.direct
        self._world = bench.world
        self._last: tuple[int, int, int] | None = None  # bytes, duration, when

    def before(self, size_bytes: int) -> int:
        """Return the ceiling in front of a sample: the one behind the last sample where that is fresh and of this size."""
        if self._last and self._last[0] == size_bytes and self._is_fresh(self._last[2]):
            return self._last[1]
        return self._measure(size_bytes)

    def after(self, size_bytes: int, before_ns: int) -> Ceilings:
        """Measure the ceiling behind a sample and return the pair."""
        after_ns = self._measure(size_bytes)
        self._last = (size_bytes, after_ns, now_ns())
        return Ceilings(size_bytes, before_ns, after_ns, self._direct, settled=True)

    def _measure(self, size_bytes: int) -> int:
        self._settle(size_bytes)
        return self._transfer_ns(size_bytes)

    def _is_fresh(self, when_ns: int) -> bool:
        """Agreed between the ranks: they take the next ceiling together or not at all."""
        return self._world.maximum(now_ns() - when_ns) < CEILING_AGE_LIMIT_NS


def _other_bytes(data: memoryview) -> memoryview:
    """Return as many bytes, each another one."""
    return memoryview((np.frombuffer(data, np.uint8) ^ 1).tobytes())


def summed_up(ranks: Sequence[Sample]) -> Sample:
    """The sample of the rank that came last, for all: disturbed where any was, flushed when the last was."""
    durations = [_duration_ns(record) for record in ranks]
    moved = [
        record.usage.read_bytes if record.kind == "load" else record.usage.written_bytes
        for record in ranks
    ]
    spread = RankSpread(len(ranks), _spread(durations), _spread(moved))
    last = (
        max(ranks, key=_stall_ns)
        if ranks[0].kind == "training"
        else ranks[spread.duration_ns.slowest_rank]
    )
    common: dict[str, Any] = {
        "rank": 0,
        "disturbed": any(record.disturbed for record in ranks),
        "spread": spread,
    }
    if isinstance(last, SaveRecord):
        files = max((record.files for record in ranks if isinstance(record, SaveRecord)), key=len)
        common["files"] = tuple(sorted(files, key=lambda file: -file.bytes)[:_FILES_AT_MOST])
        common["file_count"] = len(files)
        common["memory_copy_ns"] = median_ns(
            record.memory_copy_ns for record in ranks if isinstance(record, SaveRecord)
        )
    if not isinstance(last, LoadRecord):
        common["sync_ns"] = max(
            record.sync_ns for record in ranks if not isinstance(record, LoadRecord)
        )
    return replace(last, **common)


def _stall_ns(record: Sample) -> tuple[int, int]:
    """How long a block of training waited for its saves, and how long it was: other ranks wait for the longest in their steps."""
    return (
        (sum(record.save_ns) + sum(record.staged_ns), record.block_ns)
        if isinstance(record, TrainingRecord)
        else (0, 0)
    )


def _duration_ns(record: Sample) -> int:
    match record:
        case LoadRecord():
            return record.load_ns
        case TrainingRecord():
            return record.block_ns
        case SaveRecord():
            return record.save_ns + record.staged_ns + record.finished_ns


def _spread(values: Sequence[int]) -> Spread:
    return Spread(
        tuple(float(value) for value in np.percentile(values, PERCENTILES)), int(np.argmax(values))
    )


def is_disturbed(ceilings: Ceilings) -> bool:
    """Whether the two ceilings disagree so much that the sample between them says little."""
    return ceilings.spread > DISTURBED_ABOVE


def record_failure(
    output: Output, world: World, tasks: Sequence[Task], error: BaseException
) -> None:
    """Record a failure of the tasks.

    With several ranks it ends the job: the others wait in a barrier.
    """
    traceback.print_exception(error)
    if world.size > 1:
        # where another rank has died, this error is only its echo, and the launcher ends this rank
        # too
        time.sleep(_OTHERS_END_S)
    for task in tasks:
        output.fail(task.case.id, describe(error))
    world.fail()


def describe(error: BaseException) -> str:
    """An exception in one line; of a long text, as one that holds a traceback, its beginning and its end."""
    text = " ".join(str(error).split())
    if len(text) > _TEXT_AT_MOST:
        text = f"{text[: _TEXT_AT_MOST // 3]} … {text[-2 * _TEXT_AT_MOST // 3 :]}"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out of the clock."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def no_old_garbage() -> Iterator[None]:
    """Let collections between samples look only at what came since: a framework's modules alone take a tenth of a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def measure_copies(bench: Bench) -> tuple[int, int]:
    """(memory copy, device copy) of the whole state: median nanoseconds of one single-threaded copy each, 0 for none."""
    leaves = bench.framework.leaves
    memory_ns = median_ns(
        bench.ceiling.memory_copy_ns(leaf.data for leaf in leaves(bench.state))
        for _ in range(_COPY_TRIES)
    )
    device_ns = []
    for _ in range(_COPY_TRIES):
        begin = now_ns()
        if bench.framework.copy_to_host(bench.state):
            device_ns.append(now_ns() - begin)
    return memory_ns, median_ns(device_ns) if device_ns else 0


def bytes_here(bench: Bench) -> int:
    """Return the bytes of the state that this rank holds."""
    return sum(leaf.data.nbytes for leaf in bench.framework.leaves(bench.state))


def state_record(bench: Bench, case: Case, copies_ns: tuple[int, int]) -> StateRecord:
    """Sum up the state, and what the case's method covers of it over all ranks."""
    covers = Coverage(case.covers)
    by_role: dict[str, int] = {}
    leaf_count = covered_count = covered_bytes = 0
    for leaf in bench.framework.leaves(bench.state):
        leaf_bytes = _bytes_in_world(leaf, bench.world)
        by_role[str(leaf.role)] = by_role.get(str(leaf.role), 0) + leaf_bytes
        leaf_count += 1
        if leaf.role in covers.roles:
            covered_count += 1
            covered_bytes += _written_once(leaf, leaf_bytes, case)
    return StateRecord(
        kind="state",
        case=case.id,
        process=bench.job.process,
        rank=bench.world.rank,
        leaves=leaf_count,
        covered_leaves=covered_count,
        state_bytes=sum(by_role.values()),
        covered_bytes=covered_bytes,
        bytes_by_role=by_role,
        memory_copy_ns=copies_ns[0],
        device_copy_ns=copies_ns[1],
    )


def _bytes_in_world(leaf: Leaf, world: World) -> int:
    """A replicated leaf counts once; what differs between ranks counts on each."""
    return (
        leaf.data.nbytes
        if isinstance(leaf.placement, Replicated)
        else world.total(leaf.data.nbytes)
    )


def _written_once(leaf: Leaf, leaf_bytes: int, case: Case) -> int:
    """The bytes a checkpoint of all ranks holds of a leaf: one view of a rank-local one where the method saves no more."""
    one_view = isinstance(leaf.placement, RankLocal) and not case.rank_local
    return leaf.data.nbytes if one_view else leaf_bytes
