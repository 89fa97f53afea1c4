"""The state of a run, derived from its records alone. This is what makes a run resumable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness import experiments
from harness.run.plan import PlannedCase
from harness.wire.case import Task
from harness.wire.experiment import Stage
from harness.wire.records import FailureRecord, IsolatedRecord, Record, SampleRecord, StageRecord


@dataclass
class _Samples:
    """The samples of one case, process and stage: for every index, the ranks that reported it."""

    first_index: int = 0
    ranks: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    warmups: set[int] = field(default_factory=set)
    disturbed: set[int] = field(default_factory=set)

    def add(self, record: SampleRecord) -> None:
        """Take a rank's sample into account."""
        self.ranks[record.index] |= set(record.reporting_ranks)
        if record.warmup:
            self.warmups.add(record.index)
        elif record.disturbed:
            self.disturbed.add(record.index)

    @property
    def next_index(self) -> int:
        """Return an index that no sample has had."""
        return max(self.ranks, default=self.first_index - 1) + 1

    def complete(self, world: int) -> set[int]:
        """Return the indices of measured samples that every rank has reported."""
        reported = {index for index, ranks in self.ranks.items() if len(ranks) == world}
        return reported - self.warmups


class Progress:
    """The state of a run, kept up to date record by record."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._samples: dict[tuple[str, int, str], _Samples] = defaultdict(_Samples)
        self._ended: dict[tuple[str, int, str], set[int]] = defaultdict(set)
        self._kinds: dict[str, set[str]] = defaultdict(set)
        self.failed: set[str] = set()
        # the cases of which each has a process of its own, because it disturbs others
        self.alone: set[str] = set()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take a record into account."""
        if isinstance(record, FailureRecord):
            self.failed.add(record.case)
        elif isinstance(record, SampleRecord):
            self._samples[record.case, record.process, record.stage].add(record)
        elif isinstance(record, StageRecord):
            ended = self._ended[record.case, record.process, record.stage]
            ended |= set(record.reporting_ranks)
        elif isinstance(record, IsolatedRecord):
            self.alone.add(record.case)
            self._begin_anew(record)
        self._kinds[getattr(record, "case", "")].add(record.kind)

    def _begin_anew(self, record: IsolatedRecord) -> None:
        """Forget what others had come to in the process that a case has changed."""
        for case in record.others:
            key = (case, record.process, record.stage)
            self._ended.pop(key, None)
            if key in self._samples:
                self._samples[key] = _Samples(first_index=self._samples[key].next_index)

    def has(self, kind: str, case: str) -> bool:
        """Return whether the run holds a record of this kind for a case."""
        return kind in self._kinds[case]

    def task(self, item: PlannedCase, process: int, stage: Stage) -> Task:
        """Return what one process still has to do for a case.

        Disturbed samples use up the repeats first, and count after that. A stage without samples is
        one piece: it is there, or it is done from its beginning.
        """
        if stage.samples == "none":
            ranks = self._ended[item.case.id, process, stage.name]
            missing = len(ranks) < stage.reporting_ranks(item.case)
            return Task(item.case, samples=int(missing), warmups=0, repeats=0)
        samples = self._samples[item.case.id, process, stage.name]
        repeats = item.repeats if stage.samples == "all" else 0
        complete = samples.complete(item.case.world)
        disturbed = len(complete & samples.disturbed)
        counted = len(complete) - min(disturbed, repeats)
        return Task(
            case=item.case,
            samples=max(0, samples_of(item, stage) - counted),
            warmups=item.warmups if stage.samples == "all" else 0,
            repeats=max(0, repeats - disturbed),
            first_index=samples.next_index,
            checked_saves=item.checked_saves,
            one_writer=item.one_writer,
            files=item.files,
        )

    def done(self, item: PlannedCase, process: int, stage: Stage) -> bool:
        """Return whether nothing is missing for a case in one process. A failed case is done."""
        return item.case.id in self.failed or self.task(item, process, stage).samples == 0

    def samples_done(self, plan: Iterable[PlannedCase]) -> int:
        """Return how many of a plan's samples need no more waiting for."""
        return sum(self._done_of(item) for item in plan)

    def _done_of(self, item: PlannedCase) -> int:
        """Return how many samples of a case are done; all of them once it has failed."""
        wanted = samples_wanted([item])
        if item.case.id in self.failed:
            return wanted
        missing = 0
        for process in range(item.processes):
            for stage in _stages(item):
                missing += self.task(item, process, stage).samples
        return wanted - missing


def samples_wanted(plan: Iterable[PlannedCase]) -> int:
    """Return how many samples a plan asks for. A stage without samples counts as one."""
    total = 0
    for item in plan:
        in_a_process = sum(samples_of(item, stage) for stage in _stages(item))
        total += item.processes * in_a_process
    return total


def samples_of(item: PlannedCase, stage: Stage) -> int:
    """Return how many samples of a stage one process takes for a case."""
    return item.samples if stage.samples == "all" else 1


def _stages(item: PlannedCase) -> tuple[Stage, ...]:
    return experiments.experiment(item.case.experiment).stages
