"""What a run has already and what is still missing, worked out from its records alone: this is what makes a run resumable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.experiments.cost.records import SaveRecord
from harness.experiments.parity.records import TrajectoryRecord
from harness.experiments.reshard.records import ReshardRecord
from harness.experiments.resume.records import InterruptRecord, ResumeRecord, StraightRecord
from harness.experiments.sizes.records import RepeatRecord
from harness.experiments.train.records import TrainingRecord
from harness.run.plan import PlannedCase
from harness.wire.case import JobRole, Task
from harness.wire.experiment import SAMPLED, Stage, stages
from harness.wire.records import FailureRecord, KeptRecord, LoadRecord, Record, SyscallsRecord

Sample = SaveRecord | LoadRecord | TrainingRecord


@dataclass
class _Samples:
    """The samples of one case, process and direction: for every index, the ranks that have reported it."""

    ranks: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    warmups: set[int] = field(default_factory=set)
    disturbed: set[int] = field(default_factory=set)

    def add(self, record: Sample) -> None:
        self.ranks[record.index] |= (
            {record.rank} if record.spread is None else set(range(record.spread.ranks))
        )
        if record.warmup:
            self.warmups.add(record.index)
        elif record.disturbed:
            self.disturbed.add(record.index)

    def complete(self, world: int) -> set[int]:
        """The indices of measured samples that every rank has reported."""
        return {index for index, ranks in self.ranks.items() if len(ranks) == world} - self.warmups


class Progress:
    """The state of a run, kept up to date record by record."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._samples: dict[tuple[str, int, str], _Samples] = defaultdict(_Samples)
        self._ended: dict[tuple[str, int, JobRole], set[int]] = defaultdict(set)
        self.failed: set[str] = set()
        self.traced: set[str] = set()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take a record into account."""
        if isinstance(record, Sample):
            role: JobRole = "steps" if isinstance(record, TrainingRecord) else record.kind
            self._samples[record.case, record.process, role].add(record)
        elif isinstance(record, FailureRecord):
            self.failed.add(record.case)
        elif isinstance(record, SyscallsRecord):
            self.traced.add(record.case)
        else:
            self._add_end(record)

    def _add_end(self, record: Record) -> None:
        """Take into account that a rank has come to the end of a job that is one piece."""
        match record:
            case RepeatRecord():
                role: JobRole = "inspect" if record.pair == "one process" else "repeat"
            case ResumeRecord():
                role = "again" if record.at_step == 0 else "resume"
            case TrajectoryRecord():
                role = "train"
            case StraightRecord():
                role = "straight"
            case InterruptRecord():
                role = "interrupt"
            case KeptRecord():
                role = "part"
            case ReshardRecord():
                role = "reload"
            case _:
                return
        ranks = 1 if isinstance(record, RepeatRecord | TrajectoryRecord) else record.ranks
        self._ended[record.case, record.process, role] |= set(
            range(record.rank, record.rank + ranks)
        )

    def task(self, item: PlannedCase, process: int, role: JobRole) -> Task:
        """What one process still has to do for a case.

        Disturbed samples use up the repeats first, then count.

        What takes no samples is one piece: there, or to be done from its beginning.
        """
        if role not in SAMPLED:
            ranks = self._ended[item.case.id, process, role]
            missing = len(ranks) < _reporting_ranks(item, role)
            return Task(item.case, samples=int(missing), warmups=0, repeats=0)
        samples = self._samples[item.case.id, process, role]
        wanted, warmups, repeats = (
            (1, 0, 0) if _stage(item, role).once else (item.samples, item.warmups, item.repeats)
        )
        complete = samples.complete(item.case.world)
        disturbed = len(complete & samples.disturbed)
        counted = len(complete) - min(disturbed, repeats)
        return Task(
            case=item.case,
            samples=max(0, wanted - counted),
            warmups=warmups,
            repeats=max(0, repeats - disturbed),
            first_index=max(samples.ranks, default=-1) + 1,
        )

    def done(self, item: PlannedCase, process: int, role: JobRole) -> bool:
        """Whether nothing is missing for a case in one process; a failed case is done."""
        return item.case.id in self.failed or self.task(item, process, role).samples == 0

    def samples_done(self, plan: Iterable[PlannedCase]) -> int:
        """How many of a plan's samples need no more waiting for; those of a failed case do not."""
        return sum(
            _wanted(item, role)
            - (0 if item.case.id in self.failed else self.task(item, process, role).samples)
            for item in plan
            for process in range(item.processes)
            for role in _roles(item)
        )


def samples_wanted(plan: Iterable[PlannedCase]) -> int:
    """How many samples a plan asks for; what takes none counts as one."""
    return sum(item.processes * _wanted(item, role) for item in plan for role in _roles(item))


def _roles(item: PlannedCase) -> list[JobRole]:
    return [stage.role for stage in stages(item.case.experiment)]


def _stage(item: PlannedCase, role: JobRole) -> Stage:
    return next(stage for stage in stages(item.case.experiment) if stage.role == role)


def _wanted(item: PlannedCase, role: JobRole) -> int:
    return item.samples if role in SAMPLED and not _stage(item, role).once else 1


def _reporting_ranks(item: PlannedCase, role: JobRole) -> int:
    """How many ranks say that a job has come to its end: where files are compared, rank 0 alone."""
    return 1 if role in ("inspect", "repeat") else _stage(item, role).world(item.case)
