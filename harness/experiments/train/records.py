"""The record of training with checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import RankSpread, SampleRecord, Usage


@dataclass(frozen=True)
class TrainingRecord(SampleRecord):
    """A block of training with checkpoints on one rank, between two blocks without any.

    The state is saved at the start of each `every` steps. The loop waits for the save's `finished`
    before the next save, and at the end of the block. `save_ns`, `staged_ns` and `finished_ns` have
    one value a checkpoint, and `finished_ns` is the back-pressure. `step_ns` and `plain_step_ns`
    have one value a step, without the waits for a save. `sync_ns` is the time that making the
    checkpoints durable takes after the block, which is almost nothing for methods that flush.
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

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "steps"


RECORDS = (TrainingRecord,)
