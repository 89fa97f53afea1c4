"""One case in one process, and how many samples of it are still wanted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from harness.wire.case import Case, Task
from harness.worker.bench import Bench
from harness.worker.ranks import SampleT
from harness.worker.timing import Timed

FenceT = TypeVar("FenceT")


class Trial(ABC, Generic[FenceT]):
    """One case in this process, and how many samples of it are still wanted."""

    def __init__(self, bench: Bench, task: Task, size_bytes: int) -> None:
        """`size_bytes` is the size of a checkpoint, over all ranks."""
        self.bench = bench
        self.case: Case = task.case
        self.size_bytes = size_bytes
        self._warmups_left = task.warmups
        self._samples_left = task.samples
        self._repeats_left = task.repeats
        self._index = task.first_index

    @property
    def wants_more(self) -> bool:
        """Return whether another sample is due."""
        return self._samples_left > 0

    def is_last(self, disturbed: bool) -> bool:
        """Return whether no other sample follows the present one."""
        is_repeated = disturbed and self._repeats_left > 0
        return self._warmups_left == 0 and self._samples_left == 1 and not is_repeated

    @abstractmethod
    def sample(self, fence: FenceT) -> None:
        """Take one sample between two measurements of the fence."""

    def sample_fields(self, timed: Timed, disturbed: bool) -> dict[str, Any]:
        """Return the fields that the records of all samples have."""
        return {
            **self.bench.identity(self.case),
            "index": self._index,
            "warmup": self._warmups_left > 0,
            "disturbed": disturbed,
            "covered_bytes": self.size_bytes,
            "usage": timed.usage,
            "started_at_s": timed.started_at_s,
        }

    def report(self, record: SampleT, sum_up: Callable[[Sequence[SampleT]], SampleT]) -> None:
        """Write a sample and count it. All ranks take it again if it was disturbed on any."""
        self.bench.write_sample(record, sum_up)
        self._count(record.warmup, self.bench.world.any(record.disturbed))

    def _count(self, warmup: bool, disturbed: bool) -> None:
        """Count a sample. A disturbed one is taken again while repeats are left."""
        self._index += 1
        if warmup:
            self._warmups_left -= 1
        elif disturbed and self._repeats_left > 0:
            self._repeats_left -= 1
        else:
            self._samples_left -= 1
