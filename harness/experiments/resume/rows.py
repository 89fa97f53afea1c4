"""The rows of experiments `resume` and `rerun`: whether a run goes on, or repeats, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import text
from harness.analysis.columns import column, column_of_list
from harness.analysis.compared import Flag
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity, ranks_told
from harness.analysis.sampled import covers_column
from harness.experiments.resume.records import (
    Divergence,
    InterruptRecord,
    ResumeRecord,
    StraightRecord,
)

ABLATED_IN_WORDS = {
    "optimizer": "optimizer",
    "rng": "RNG",
    "buffer": "batch-norm statistics",
    "position": "position",
}


def _result_text(row: ResumeRow) -> str:
    return row.result if row.bitwise is not None else row.status


def _first_text(row: ResumeRow) -> str:
    if row.diverged_at is None:
        return ""
    rank = f" on rank {row.diverged_rank}" if row.world > 1 else ""
    return f"{row.first_leaves[0]}{rank}"


def _final_text(row: ResumeRow) -> str:
    if not row.final_count:
        return ""
    return f"{row.final_count} leaves, up to {row.final_max_ulp} ulp"


def _losses_text(row: ResumeRow) -> str:
    if row.bitwise is None:
        return text.NOTHING
    return f"{row.losses[-1]:.6f} / {row.straight_losses[-1]:.6f}"


@dataclass(kw_only=True)
class ResumeRow(Row):
    """One resumed run against the straight one, leaf by leaf after every step.

    Without a method, it is a run that began anew. `diverged_at` is the first step after which a
    leaf of any rank differs. It is `at_step` itself where the load did not restore the leaf.
    """

    covers: str = covers_column(lambda row: row.covers if row.method else "")
    at_step: int | None = column("the step after which the checkpoint was saved")
    steps: int | None = column("how many steps the runs have")
    bitwise: bool | None = column(
        "whether every tensor after every step is bit by bit that of a run without interruption",
        heading="resumed",
        text=_result_text,
        left_aligned=True,
        compared=Flag("bitwise"),
    )
    diverged_at: int | None = column(
        "the first step after which a tensor differs. A table names the tensor, and by how many "
        "representable numbers (ulp) it differs",
        heading="first",
        text=_first_text,
        left_aligned=True,
    )
    diverged_rank: int | None = column("the rank of that tensor")
    first_count: int | None = column("how many tensors differ there")
    first_leaves: list[str] = column_of_list("the farthest of the tensors that differ there")
    first_roles: list[str] = column_of_list("the roles of the tensors that differ there")
    first_max_ulp: int | None = column(
        "the most representable numbers that any of them is away; None where none is a float"
    )
    final_count: int | None = column(
        "how many tensors differ after the last step. A table adds by how much",
        heading="at the end",
        text=_final_text,
    )
    final_max_ulp: int | None = column("the most representable numbers that any of these is away")
    leaves: int | None = column("how many tensors the state has")
    repeatable: bool | None = column(
        "whether the interrupted run had the straight run's losses up to its checkpoint"
    )
    restored: bool | None = column(
        "whether every rank's load brought back all that was saved", compared=Flag("restored")
    )
    straight_losses: list[float] = column_of_list("the losses of the run without interruption")
    losses: list[float] = column_of_list(
        "the losses of the run. A table has the last one, over that of the run without "
        "interruption",
        heading="last loss",
        text=_losses_text,
    )

    @property
    def verdict(self) -> str:
        """The row in one word."""
        if self.status != "ok":
            return self.status
        return "bitwise" if self.bitwise else "diverged"

    @property
    def detail(self) -> str:
        """The part of the state that the run did not get back."""
        return f" without {ABLATED_IN_WORDS[self.ablated]}" if self.ablated else ""

    def title(self, several_frameworks: bool) -> str:
        """Return the text of a table's first column."""
        if self.method:
            return super().title(several_frameworks)
        return f"{self.framework} without a checkpoint{self.strategy_suffix}"

    @property
    def differed_before(self) -> bool:
        """True where training differed before the save, so that the checkpoint is not to blame."""
        return (
            self.diverged_at is not None
            and self.diverged_at == self.at_step
            and bool(self.restored)
            and not self.ablated
        )

    @property
    def result(self) -> str:
        """The row in a few words."""
        if self.bitwise:
            return "bitwise identical"
        what = f"{', '.join(self.first_roles)}: {self.first_count} of {self.leaves} leaves"
        if self.differed_before:
            return f"differed before it was saved ({what})"
        if self.diverged_at == self.at_step:
            return f"not restored ({what})"
        return f"differs from step {self.diverged_at} on ({what})"


def rows(items: Sequence[Wanted], records: RunRecords) -> list[ResumeRow]:
    """Derive the row of every case."""
    return [_row(item, records) for item in items]


def _row(item: Wanted, records: RunRecords) -> ResumeRow:
    case = item.case
    row = ResumeRow(**identity(item))
    if row.fail(records.failures(case.id)):
        return row
    resumed = records.of(ResumeRecord, case.id)
    straight = records.of(StraightRecord, case.id)
    reported = min(ranks_told(resumed), ranks_told(straight))
    if reported < case.world or _lacks_divergence(resumed):
        row.interrupt()
        return row
    _describe(row, resumed)
    _add_losses(row, straight, resumed)
    interrupted = records.of(InterruptRecord, case.id)
    if interrupted:
        losses = {record.rank: record.losses for record in straight}
        row.repeatable = all(
            record.losses == losses[record.rank][: record.at_step] for record in interrupted
        )
    return row


def _lacks_divergence(resumed: Sequence[ResumeRecord]) -> bool:
    """Return True if a rank diverged, but no record says at which step.

    The record of that rank is lost if one record stands for all ranks.
    """
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
