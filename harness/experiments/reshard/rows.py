"""The rows of experiment `reshard`: whether another number of ranks can load a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.columns import column, identity_column
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity, ranks_told, verified_column
from harness.experiments.reshard.records import ReshardRecord


@dataclass(kw_only=True)
class ReshardRow(Row):
    """One checkpoint, saved by `world` ranks and loaded by `load_world`, compared leaf by leaf."""

    load_world: int = identity_column(
        "how many ranks saved, and how many loaded",
        heading="ranks",
        text=lambda row: f"{row.world} to {row.load_world}",
    )
    replicated_leaves: int | None = column(
        "how many tensors every rank has whole", heading="replicated"
    )
    sharded_leaves: int | None = column(
        "how many tensors are divided over the ranks", heading="sharded"
    )
    left_out: int | None = column(
        "how many tensors a rank has of its own, or the method does not cover", heading="left out"
    )
    verified: bool = verified_column("whether everything else came back bit by bit", "whole")


def rows(items: Sequence[Wanted], records: RunRecords) -> list[ReshardRow]:
    """Derive the row of every case."""
    return [_row(item, records) for item in items]


def _row(item: Wanted, records: RunRecords) -> ReshardRow:
    case = item.case
    row = ReshardRow(**identity(item))
    if row.fail(records.failures(case.id)):
        return row
    loaded = records.of(ReshardRecord, case.id)
    if ranks_told(loaded) < case.load_world:
        row.interrupt()
        return row
    row.replicated_leaves = loaded[0].replicated_leaves
    row.sharded_leaves = loaded[0].sharded_leaves
    row.left_out = loaded[0].left_out
    row.verified = True
    return row
