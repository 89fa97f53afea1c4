"""What a run has already and what is still missing, worked out from its records alone: this is what makes a run resumable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from harness.case import Task
from harness.driver.suite import PlannedCase
from harness.record import FailureRecord, LoadRecord, Record, SaveRecord, SyscallsRecord

Direction = Literal["save", "load"]
_DIRECTIONS: tuple[Direction, ...] = ("save", "load")


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
        self.failed: set[str] = set()
        self.traced: set[str] = set()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take a record into account."""
        if isinstance(record, SaveRecord | LoadRecord):
            self._samples[record.case, record.process, record.kind].add(record)
        elif isinstance(record, FailureRecord):
            self.failed.add(record.case)
        elif isinstance(record, SyscallsRecord):
            self.traced.add(record.case)

    def task(self, item: PlannedCase, process: int, direction: Direction) -> Task:
        """What one process still has to do for a case. Disturbed samples use up the repeats first, then count."""
        samples = self._samples[item.case.id, process, direction]
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

    def done(self, item: PlannedCase, process: int, direction: Direction) -> bool:
        """Whether nothing is missing for a case in one process; a failed case is done."""
        return item.case.id in self.failed or self.task(item, process, direction).samples == 0

    def samples_done(self, plan: Iterable[PlannedCase]) -> int:
        """How many of a plan's samples need no more waiting for; those of a failed case do not."""
        return sum(
            item.samples - (0 if item.case.id in self.failed else self.task(item, process, direction).samples)
            for item in plan
            for process in range(item.processes)
            for direction in _DIRECTIONS
        )


def samples_wanted(plan: Iterable[PlannedCase]) -> int:
    """How many samples a plan asks for, saves and loads."""
    return sum(len(_DIRECTIONS) * item.processes * item.samples for item in plan)
