"""How much slower training gets by its checkpoints: the rows of the train experiment."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from harness.analysis import statistics
from harness.analysis.frame import Measured, usable
from harness.analysis.row import Row, Wanted, identity
from harness.analysis.statistics import Estimate, Samples


@dataclass(kw_only=True)
class TrainRow(Row):
    """What one checkpoint every `every` steps costs a training loop. Seconds are per checkpoint.

    `overhead_s` is what a block of training with checkpoints takes beyond the mean of the two
    around it without; `overhead_share` the same as a share of the time without. It is the sum of
    the stall, of `slowdown_s` (how much longer the steps take between checkpoints) and of
    `back_pressure_s` (what the loop waits for the checkpoint before the next). `unflushed_s` comes
    after it: what flushing the checkpoint then still takes.
    """

    samples: int = 0
    disturbed: int = 0
    used_disturbed: int = 0  # of `samples`: where too few were undisturbed, all count
    processes: int = 0
    state_bytes: int | None = None
    file_bytes: int | None = None
    step_s: Estimate | None = None
    overhead_s: Estimate | None = None
    overhead_share: Estimate | None = None
    stall_s: Estimate | None = None
    stall_copies: Estimate | None = None  # the stall as a multiple of `memory_copy_s`
    slowdown_s: Estimate | None = None
    back_pressure_s: Estimate | None = None
    unflushed_s: Estimate | None = None
    memory_copy_s: float | None = None
    verified: bool = False
    overhead_samples: Samples | None = field(default=None, repr=False)


def row(item: Wanted, found: Measured) -> TrainRow:
    """Derive the row of one case."""
    case = item.case
    row = TrainRow(**identity(item))
    state = found.states.get(case.id)
    if state is not None:
        row.state_bytes, row.memory_copy_s = state.state_bytes, found.memory_copy_s(case.id)
    if row.fail(found.failures.get(case.id, [])):
        return row  # wrong bytes yield no number
    _add_blocks(row, found.trainings[found.trainings["case"] == case.id], item.samples)
    row.verified = len(found.verified.get(case.id, ())) >= item.processes * case.world
    if row.overhead_s is None or not row.verified:
        row.status, row.reason = "skipped", "not measured to the end: the run was interrupted"
    return row


def _add_blocks(row: TrainRow, blocks: pd.DataFrame, wanted: int) -> None:
    if blocks.empty or blocks["warmup"].all():
        return
    row.disturbed = int(blocks["disturbed"][~blocks["warmup"]].sum())
    used = usable(blocks, wanted)
    row.samples, row.processes = len(used), used["process"].nunique()
    row.used_disturbed = int(used["disturbed"].sum())
    row.file_bytes = int(used["file_bytes"].median())
    row.step_s = statistics.median(_samples(used, "step_s"))
    row.overhead_samples = _samples(used, "overhead_s")
    row.overhead_s = statistics.location(row.overhead_samples)
    for name in ("overhead_share", "stall_s", "slowdown_s", "back_pressure_s", "unflushed_s"):
        setattr(row, name, statistics.location(_samples(used, name)))
    if row.memory_copy_s:
        row.stall_copies = statistics.location(
            _samples(used.assign(copies=used["stall_s"] / row.memory_copy_s), "copies")
        )


def _samples(frame: pd.DataFrame, column: str) -> Samples:
    return Samples(frame[column].to_numpy(dtype=float), frame["process"].to_numpy(dtype=int))
