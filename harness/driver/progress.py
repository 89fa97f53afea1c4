"""What a run has already and what is still missing, worked out from its records alone: this is what makes a run resumable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.case import JobRole, Task
from harness.driver.experiments import SAMPLED, stages
from harness.driver.suite import PlannedCase
from harness.record import FailureRecord, LoadRecord, Record, RepeatRecord, SaveRecord, SyscallsRecord, TrajectoryRecord


@dataclass
class _Samples:
    """The samples of one case, process and direction: for every index, the ranks that have reported it."""

    ranks: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    warmups: set[int] = field(default_factory=set)
    disturbed: set[int] = field(default_factory=set)

    def add(self, record: SaveRecord | LoadRecord) -> None:
        self.ranks[record.index].add(record.rank)
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
        self._came_to_its_end: set[tuple[str, int, JobRole]] = set()
        self.failed: set[str] = set()
        self.traced: set[str] = set()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take a record into account."""
        if isinstance(record, SaveRecord | LoadRecord):
            self._samples[record.case, record.process, record.kind].add(record)
        elif isinstance(record, RepeatRecord):
            role: JobRole = "inspect" if record.pair == "one process" else "repeat"
            self._came_to_its_end.add((record.case, record.process, role))
        elif isinstance(record, TrajectoryRecord):
            self._came_to_its_end.add((record.case, record.process, "train"))
        elif isinstance(record, FailureRecord):
            self.failed.add(record.case)
        elif isinstance(record, SyscallsRecord):
            self.traced.add(record.case)

    def task(self, item: PlannedCase, process: int, role: JobRole) -> Task:
        """What one process still has to do for a case. Disturbed samples use up the repeats first, then count.

        What takes no samples is one piece: there, or to be done from its beginning.
        """
        if role not in SAMPLED:
            missing = (item.case.id, process, role) not in self._came_to_its_end
            return Task(item.case, samples=int(missing), warmups=0, repeats=0)
        samples = self._samples[item.case.id, process, role]
        complete = samples.complete(item.case.world)
        disturbed = len(complete & samples.disturbed)
        counted = len(complete) - min(disturbed, item.repeats)
        return Task(
            case=item.case,
            samples=max(0, item.samples - counted),
            warmups=item.warmups,
            repeats=max(0, item.repeats - disturbed),
            first_index=max(samples.ranks, default=-1) + 1,
        )

    def done(self, item: PlannedCase, process: int, role: JobRole) -> bool:
        """Whether nothing is missing for a case in one process; a failed case is done."""
        return item.case.id in self.failed or self.task(item, process, role).samples == 0

    def samples_done(self, plan: Iterable[PlannedCase]) -> int:
        """How many of a plan's samples need no more waiting for; those of a failed case do not."""
        return sum(
            _wanted(item, role) - (0 if item.case.id in self.failed else self.task(item, process, role).samples)
            for item in plan
            for process in range(item.processes)
            for role in _roles(item)
        )


def samples_wanted(plan: Iterable[PlannedCase]) -> int:
    """How many samples a plan asks for; what takes none counts as one."""
    return sum(item.processes * _wanted(item, role) for item in plan for role in _roles(item))


def _roles(item: PlannedCase) -> list[JobRole]:
    return [stage.role for stage in stages(item.case.experiment)]


def _wanted(item: PlannedCase, role: JobRole) -> int:
    return item.samples if role in SAMPLED else 1
