"""One case in one process, and how many samples of it are still wanted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from harness.wire.case import Case, Task
from harness.worker.bench import Bench

FenceT = TypeVar("FenceT")


class Trial(ABC, Generic[FenceT]):
    """One case in this process, and how many samples of it are still wanted."""

    def __init__(self, bench: Bench, task: Task, size_bytes: int) -> None:
        self.bench = bench
        self.case: Case = task.case
        self.size_bytes = size_bytes
        self._warmups_left = task.warmups
        self._samples_left = task.samples
        self._repeats_left = task.repeats
        self._index = task.first_index

    @property
    def wants_more(self) -> bool:
        """Whether another sample is due."""
        return self._samples_left > 0

    @abstractmethod
    def sample(self, fence: FenceT) -> None:
        """Take one sample, between two of what it is held against."""

    def count(self, warmup: bool, disturbed: bool) -> None:
        """Book a sample: a disturbed one is taken again while repeats are left."""
        self._index += 1
        if warmup:
            self._warmups_left -= 1
        elif disturbed and self._repeats_left > 0:
            self._repeats_left -= 1
        else:
            self._samples_left -= 1
