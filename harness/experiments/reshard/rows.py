"""Whether another number of ranks can load a checkpoint: the rows of the reshard experiment."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.frame import Measured
from harness.analysis.row import Row, Wanted, identity, ranks_told


@dataclass(kw_only=True)
class ReshardRow(Row):
    """One checkpoint, saved by `world` ranks and loaded by `load_world`, compared leaf by leaf.

    `left_out` counts leaves that ranks have of their own, or that the method does not cover.
    """

    replicated_leaves: int | None = None
    sharded_leaves: int | None = None
    left_out: int | None = None
    verified: bool = False


def row(item: Wanted, found: Measured) -> ReshardRow:
    """Derive the row of one case."""
    case = item.case
    row = ReshardRow(**identity(item))
    if row.fail(found.failures.get(case.id, [])):
        return row
    loaded = found.resharded.get(case.id, [])
    if ranks_told(loaded) < case.load_world:
        row.status, row.reason = "skipped", "not measured to the end: the run was interrupted"
        return row
    row.replicated_leaves, row.sharded_leaves = (
        loaded[0].replicated_leaves,
        loaded[0].sharded_leaves,
    )
    row.left_out = loaded[0].left_out
    row.verified = True
    return row
