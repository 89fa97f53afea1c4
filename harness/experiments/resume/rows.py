"""Whether a killed run goes on as if nothing had happened: the rows of the resume and rerun experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.analysis.frame import Measured
from harness.analysis.row import Row, Wanted, identity, ranks_told
from harness.experiments.resume.records import Divergence, ResumeRecord, StraightRecord


@dataclass(kw_only=True)
class ResumeRow(Row):
    """One resumed run (or, without a method, one that began anew) against the straight one, leaf by leaf after every step.

    `diverged_at` is the first step after which a leaf of any rank differs: `at_step` itself where
    the load did not restore it. `first_leaves` are the farthest of those that differ there,
    `first_max_ulp` the most representable numbers that any of all is away; None where they are no
    floating point. `restored` says whether every rank's load brought back all that was saved,
    `repeatable` whether the interrupted run had the straight run's losses up to its checkpoint.
    """

    at_step: int | None = None
    steps: int | None = None
    bitwise: bool | None = None
    diverged_at: int | None = None
    diverged_rank: int | None = None
    first_count: int | None = None
    first_leaves: list[str] = field(default_factory=list)
    first_roles: list[str] = field(default_factory=list)
    first_max_ulp: int | None = None
    final_count: int | None = None
    final_max_ulp: int | None = None
    leaves: int | None = None
    repeatable: bool | None = None
    restored: bool | None = None
    straight_losses: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The row in a few words."""
        if self.bitwise:
            return "bitwise identical"
        what = f"{', '.join(self.first_roles)}: {self.first_count} of {self.leaves} leaves"
        if self.diverged_at == self.at_step and self.restored and not self.ablated:
            return f"differed before it was saved ({what})"
        if self.diverged_at == self.at_step:
            return f"not restored ({what})"
        return f"differs from step {self.diverged_at} on ({what})"


def row(item: Wanted, found: Measured) -> ResumeRow:
    """Derive the row of one case."""
    case = item.case
    row = ResumeRow(**identity(item))
    if row.fail(found.failures.get(case.id, [])):
        return row
    resumed, straight = found.resumed.get(case.id, []), found.straight.get(case.id, [])
    if min(ranks_told(resumed), ranks_told(straight)) < case.world or _lacks_divergence(resumed):
        row.status, row.reason = "skipped", "not measured to the end: the run was interrupted"
        return row
    _describe(row, resumed)
    _add_losses(row, straight, resumed)
    interrupted = found.interrupted.get(case.id, [])
    if interrupted:
        known = {record.rank: record.losses for record in straight}
        row.repeatable = all(
            record.losses == known[record.rank][: record.at_step] for record in interrupted
        )
    return row


def _lacks_divergence(resumed: Sequence[ResumeRecord]) -> bool:
    """Whether a rank diverged and its record, which would say where, is lost: one for all ranks is only a summary."""
    return not all(record.identical for record in resumed) and all(
        record.diverged_at is None for record in resumed
    )


def _describe(row: ResumeRow, resumed: Sequence[ResumeRecord]) -> None:
    any_rank = resumed[0]
    row.at_step, row.steps, row.leaves = any_rank.at_step, any_rank.steps, any_rank.leaves
    row.bitwise = all(record.identical for record in resumed)
    told = [record.restored for record in resumed if record.restored is not None]
    row.restored = all(told) if told else None
    row.final_count = max(record.final_count for record in resumed)
    row.final_max_ulp = max(record.final_max_ulp for record in resumed)
    diverged = [record for record in resumed if record.diverged_at is not None]
    if not diverged:
        return
    first = min(diverged, key=lambda record: (record.diverged_at, record.rank))
    row.diverged_at, row.diverged_rank, row.first_count = (
        first.diverged_at,
        first.rank,
        first.first_count,
    )
    row.first_leaves = [_described(leaf) for leaf in first.first]
    row.first_roles = list(first.first_roles) or sorted({leaf.role for leaf in first.first})
    row.first_max_ulp = first.first_max_ulp
    if row.first_max_ulp is None:  # a record of before that was stored: of the leaves that it names
        row.first_max_ulp = max(
            (leaf.max_ulp for leaf in first.first if leaf.max_ulp is not None), default=None
        )


def _described(leaf: Divergence) -> str:
    return leaf.name if leaf.max_ulp is None else f"{leaf.name} ({leaf.max_ulp} ulp)"


def _add_losses(
    row: ResumeRow, straight: Sequence[StraightRecord], resumed: Sequence[ResumeRecord]
) -> None:
    """Take over rank 0's traces."""
    row.straight_losses = list(min(straight, key=lambda record: record.rank).losses)
    row.losses = list(min(resumed, key=lambda record: record.rank).losses)
