"""The surroundings that all trials of a job share: state, folders, ceilings and output."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from adapters.base import Coverage, Framework, Method, Peers, Place
from harness.wire.case import TRACE, Case, Job, OwnModel, Task
from harness.wire.folders import Folders
from harness.wire.records import Backing, FindingRecord, IsolatedRecord, Record, Weight
from harness.worker import own_models, storage
from harness.worker.backing import Backer
from harness.worker.ceiling import Ceiling
from harness.worker.checkpoints import Checkpoints
from harness.worker.failures import ThreadErrors, record_failure
from harness.worker.guards import (
    fresh_bits,
    late_values,
    neighbours,
    stored_pages,
    unchanged_state,
)
from harness.worker.guards.neighbours import Surroundings
from harness.worker.kept import Kept
from harness.worker.output import Output
from harness.worker.ranks import SampleT, changed
from harness.worker.timing import Timed
from harness.worker.verify import Digests, Scope, digests
from harness.worker.world import World
from workloads import Workload

_BACKED_COPIES = 3  # page cache, snapshot, serialization buffer
_BACKED_EXTRA_BYTES = 64 << 20

Entries = list[tuple[int, Task]]
"""Tasks with their indices in the job."""

T = TypeVar("T")
ResultT = TypeVar("ResultT")


class Closes(Protocol):
    """A method, a store, or what stands for one."""

    def close(self) -> None:
        """Give back the resources that it holds."""


class Conditions(NamedTuple):
    """The condition of disk and memory just before a sample."""

    quiet: bool | None
    backing: Backing


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
    thread_errors: ThreadErrors = field(default_factory=ThreadErrors)
    workload: Workload | OwnModel | None = None
    state: Any = None
    peers: Peers | None = None  # the framework's own means by which the ranks add up
    fresh_bytes: int = 0  # random bytes in the state
    _digests: Digests | None = None
    _sums: unchanged_state.Sums | None = None
    _has_closed: bool = False  # a method, since the present task began
    _threads_of: dict[str, set[int]] = field(default_factory=dict)  # by case
    _found: set[tuple[str, str, Weight]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.folders, self.world)

    def guards(self, name: str) -> bool:
        """Return whether a guard is on."""
        return name not in self.job.without_guards

    # Methods

    def open_method(self, case: Case) -> Method[Any]:
        """Make the case's method, and open it on the state."""
        method: Method[Any] = self.make(case)
        method.open(self.state)
        return method

    def make(self, case: Case) -> Any:
        """Return a new object of the case's class, which is not open yet."""
        self.output.enter("open")
        place = replace(self.place, memory=self.memory(case))
        return load_class(case.method_path)(place, self.framework, dict(case.options))

    def memory(self, case: Case) -> Path | None:
        """Return the folder in shared memory for a case's checkpoints; None where it has none."""
        return Path(self.job.memory) / case.id if self.job.memory and case.from_memory else None

    def close_method(self, method: Closes) -> None:
        """Have a method or a store give back what it holds."""
        self.output.enter("close")
        method.close()
        self._has_closed = True

    def scope(self, case: Case) -> Scope:
        """Return which leaves the case's method covers on this rank."""
        return Scope(Coverage(case.covers), case.rank_local, self.world.size)

    # The state

    def build(self, workload: Workload | OwnModel, seed: int) -> None:
        """Build the state of a workload or of the user's own model, and drop the one before."""
        self.drop_state()
        self.forget_digests()
        self.workload = workload
        if isinstance(workload, OwnModel):
            own_models.require_recorded(workload)
            make = own_models.load(Path(workload.file), workload.function)
            self.state = own_models.adopted(self.framework, make, seed)
            own_models.require_recorded(workload)
            if self.place.world > 1:
                own_models.require_alike(self.framework, self.state, self.world)
        else:
            self.state = self.framework.build(workload, seed)

    def drop_state(self) -> None:
        """Free the state's memory."""
        # A collection goes through everything that the framework has made, which takes long.
        if self.state is None:
            return
        self.state = None
        # A framework's state may refer to itself in cycles, and was frozen with everything else.
        gc.unfreeze()
        gc.collect()

    def rebuild(self, seed: int, steps: int) -> None:
        """Build the state again, and train it for some steps."""
        assert self.workload is not None
        self.build(self.workload, seed)
        self.train(steps)

    def rebuild_target(self) -> None:
        """Build the state that a load is going to overwrite.

        Its seed and its number of steps differ from those of the saved state.
        """
        self.rebuild(self.job.seed + 1, 1)

    def train(self, steps: int = 1) -> None:
        """Take training steps, untimed."""
        self.forget_digests()
        for _ in range(steps):
            self.framework.gradients(self.state)
            self.framework.update(self.state)
        self.framework.synchronize(self.state)

    def add_fresh_bits(self) -> None:
        """Change the lowest bits of the weights, so that nobody can compute the state again."""
        if self.guards(fresh_bits.NAME):
            self.forget_digests()
            self.fresh_bytes = fresh_bits.add_fresh_bits(self.framework, self.state, self.world)

    def note_sums(self) -> None:
        """Take sums of all leaves, with which `check_unchanged` compares the state after a save."""
        if self._sums is None and self.guards(unchanged_state.NAME):
            self._sums = unchanged_state.sums(self.framework.leaves(self.state))

    def check_unchanged(self) -> None:
        """Raise StateChanged if the state is another than when its sums were taken."""
        if not self.guards(unchanged_state.NAME):
            return
        assert self._sums is not None
        now = unchanged_state.sums(self.framework.leaves(self.state))
        try:
            unchanged_state.check_unchanged(self._sums, now)
        except unchanged_state.StateChanged:
            # The next method is given the state as it is now.
            self.forget_digests()
            raise

    def check_not_late(self, early: unchanged_state.Sums) -> None:
        """Raise LateValues if a leaf is another than just after a load."""
        if self.guards(late_values.NAME):
            # Digests take long, so a second look after them sees more than one before them.
            self.digests()
            late_values.check_not_late(early, self.framework.leaves(self.state))

    def digests(self) -> Digests:
        """Return the digests of the state. They are computed anew only after `forget_digests`."""
        if self._digests is None:
            self._digests = digests(self.framework.leaves(self.state))
        return self._digests

    def forget_digests(self) -> None:
        """Drop the digests and the sums, because the state changes now."""
        self._digests = None
        self._sums = None

    def assign_other_bytes(self, names: Iterable[str]) -> None:
        """Change every byte of the named leaves.

        Training does not move all leaves of a rank. If a rank's shard has only rows of an embedding
        whose tokens never occur, Adam's moments of them stay zero.
        """
        wanted = set(names)
        if not wanted:
            return
        other_bytes = {
            leaf.name: _other_bytes(leaf.data)
            for leaf in self.framework.leaves(self.state)
            if leaf.name in wanted
        }
        self.forget_digests()
        self.framework.assign(self.state, other_bytes)

    # Checkpoints

    def kept(self, case: Case, rank: int) -> list[Kept]:
        """Return the checkpoints that an earlier process of a rank keeps for this one.

        Raise ChangedPages if one is not what it was when its save had finished.
        """
        with self.phase("verify"):
            return self.checkpoints.kept(case, rank)

    def stored_pages(self, path: Path) -> stored_pages.StoredPages | None:
        """Return some pages of a checkpoint whose save has finished. Rank 0 looks for all."""
        if self.world.rank > 0 or not self.guards(stored_pages.NAME):
            return None
        return stored_pages.sampled(path)

    def check_kept(self, entries: Entries) -> None:
        """Check at the end of a process that its checkpoints are what they were."""

        def check(task: Task) -> None:
            self.output.enter("finished")
            self.thread_errors.raise_first()
            self.checkpoints.check_kept(task.case)

        self.attempt(entries, check)

    # Phases and timed regions

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Enter a phase for the lines of the block.

        The phase lasts until another one begins, so an error after the block still belongs to it.
        """
        self.output.enter(name)
        yield

    def timed(self, phase: str) -> Timed:
        """Return a region in this phase in which a clock runs; see `Timed`."""
        return Timed(self.world, self.output, self.folders.scratch, phase)

    def settle(self, size_bytes: int, copies: int = _BACKED_COPIES) -> Conditions:
        """Prepare the machine for a sample of `size_bytes`, and return the conditions.

        Collect garbage, wait until the disk is quiet, and have the kernel own backed memory for as
        many copies of the bytes.
        """
        gc.collect()
        self.framework.synchronize(self.state)
        quiet = storage.wait_until_quiet(self.folders.scratch)
        bytes_per_rank = copies * size_bytes // self.world.size
        backing = self.backer.back(bytes_per_rank + _BACKED_EXTRA_BYTES)
        return Conditions(quiet, backing)

    # Records

    @property
    def every_rank_writes(self) -> bool:
        """Return whether each rank writes its records; in a large world, rank 0 writes for all."""
        return self.world.size <= self.job.summary_above

    def identity(self, case: Case) -> dict[str, Any]:
        """Return the fields by which a record says whose it is."""
        return {"case": case.id, "process": self.job.process, "rank": self.world.rank}

    def write_common(self, record: Record) -> None:
        """Write a record that is the same on every rank.

        In a large world rank 0 writes it for all, once all ranks have come here.
        """
        if self.every_rank_writes:
            self.output.write(record)
            return
        self.world.barrier()
        if self.world.rank == 0:
            self.output.write(changed(record, ranks=self.world.size))

    def write_finding(self, case: Case, guard: str, weight: Weight, sentence: str) -> None:
        """Write what a guard saw of a case on this rank. A process writes one of each weight."""
        if (case.id, guard, weight) in self._found or not self.guards(guard):
            return
        self._found.add((case.id, guard, weight))
        record = FindingRecord(
            kind="finding", **self.identity(case), guard=guard, weight=weight, sentence=sentence
        )
        self.output.write(record)

    def write_sample(self, record: SampleT, sum_up: Callable[[Sequence[SampleT]], SampleT]) -> None:
        """Write a rank's sample. In a large world rank 0 writes what `sum_up` makes of all."""
        if self.every_rank_writes:
            self.output.write(record)
            return
        records = self.world.gather(record)
        if records is not None:
            self.output.write(sum_up(records))

    # Tasks

    def attempt(
        self,
        entries: Sequence[tuple[int, T]],
        action: Callable[[T], ResultT],
        repair: Callable[[], None] | None = None,
    ) -> list[tuple[int, ResultT]]:
        """Act on each entry, and return the results with the indices of their tasks.

        An entry that fails becomes a record, and the others go on. `repair` is called after each
        failure, where a failure can spoil what the entries share.
        """
        results = []
        for index, entry in entries:
            self.output.task(index)
            self.thread_errors.leave_out(self._threads_of_others(self.job.tasks[index].case))
            surroundings = Surroundings.now()
            threads = neighbours.threads()
            self._forget_dead(threads)
            self._has_closed = False
            try:
                result = action(entry)
                # A thread that began and ended meanwhile would otherwise be nobody's.
                self.thread_errors.raise_first()
                results.append((index, result))
            except BaseException as error:
                # A panic of a Rust extension and a cancelled task are no Exceptions.
                record_failure(self.output, self.world, [self.job.tasks[index]], error)
                self.thread_errors.clear()
                if repair is not None:
                    repair()
                self.checkpoints.remove_unfinished()
            case = self.job.tasks[index].case
            self._threads_of.setdefault(case.id, set()).update(neighbours.threads() - threads)
            if self.guards(neighbours.NAME):
                self._look_at_surroundings(case, surroundings)
        self.thread_errors.leave_out(set().union(*self._threads_of.values()))
        return results

    def _forget_dead(self, living: set[int]) -> None:
        """Forget threads that have ended, because the kernel uses their numbers again."""
        wanted = living | self.thread_errors.threads
        for threads in self._threads_of.values():
            threads &= wanted

    def _threads_of_others(self, case: Case) -> set[int]:
        """Return the threads that other cases than this one have started."""
        others = [threads for owner, threads in self._threads_of.items() if owner != case.id]
        return set().union(*others)

    def _look_at_surroundings(self, case: Case, before: Surroundings) -> None:
        """Raise MustBeAlone if a case has changed the process, and others share it."""
        now = Surroundings.now()
        changes = before.changes(now)
        if self._has_closed and neighbours.are_busy(self._threads_of[case.id]):
            changes.append("the load of the processors by threads that it left")
        if not self.world.any(bool(changes)):
            return
        seen = next(filter(None, self.world.all_gathered(changes)))
        in_words = ", ".join(seen)
        weight: Weight = "mark" if before.doubts_flushes(now) else "remark"
        sentence = f"it changed {in_words} for its whole process, and was measured alone"
        self.write_finding(case, neighbours.NAME, weight, sentence)
        others = tuple(task.case.id for task in self.job.tasks if task.case.id != case.id)
        if not others or self.job.role == TRACE:
            return
        if self.world.rank == 0:
            self.output.write(
                IsolatedRecord(
                    kind="isolated",
                    **self.identity(case),
                    stage=self.job.role,
                    others=others,
                )
            )
        raise neighbours.MustBeAlone


def load_class(path: str) -> Any:
    """Import "package.module:Class" and return the class."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _other_bytes(data: memoryview) -> memoryview:
    """Return as many bytes, each of them changed."""
    flipped = np.frombuffer(data, np.uint8) ^ 1
    return memoryview(flipped.tobytes())
