"""The record of a checkpoint that another number of ranks loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import StageRecord


@dataclass(frozen=True)
class ReshardRecord(StageRecord):
    """A checkpoint that another number of ranks loaded. The ranks' leaves were compared together.

    `left_out` counts the leaves that belong to a single rank.
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

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "reload"


RECORDS = (ReshardRecord,)
