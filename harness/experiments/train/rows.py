"""The rows of experiment `train`: how much slower training gets by its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd

from harness.analysis import text
from harness.analysis.columns import (
    OverRanks,
    column,
    identity_column,
    largest,
    location,
    samples_of,
    slowest,
)
from harness.analysis.compared import TOLERANCE, Controls, Cost, FileBytes, Worth, in_part
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity, verified_column
from harness.analysis.sampled import (
    Sampled,
    add_samples,
    add_state,
    is_verified,
    memory_copy_column,
    samples_column,
    stall_transfers_column,
    state_bytes_column,
    to_device_column,
    to_host_column,
    used_disturbed_column,
)
from harness.analysis.samples import KEY, SampleTable, Value
from harness.analysis.statistics import Estimate, Samples
from harness.experiments.train import interval_in_words
from harness.experiments.train.records import TrainingRecord

# Of the training without checkpoints. An overhead that differs by less is the same.
OVERHEAD_FLOOR = 0.01


# `BLOCKS` chooses the rank, so the aggregate is never taken.
_LONGEST_STALL = OverRanks("that of the rank that stalled longest", "max")


def _of_the_rank_that_stalled_longest(ranks: pd.DataFrame) -> pd.DataFrame:
    """Return one row a block, with the times of the rank that stalled longest.

    The parts of one rank add up, and the other ranks wait for it in their steps.
    """
    ranks = ranks.sort_values(["stall_s", "block_s"])
    groups = ranks.groupby(KEY)
    blocks = ranks.groupby(KEY, as_index=False).last()
    for name in ("unflushed_s", "disturbed", "file_bytes"):
        blocks[name] = groups[name].max().to_numpy()
    return blocks


BLOCKS = SampleTable(
    TrainingRecord,
    values={
        "checkpoints": Value(lambda record: record.checkpoints, _LONGEST_STALL),
        "steps": Value(lambda record: record.checkpoints * record.every, _LONGEST_STALL),
        "plain_s": Value(
            lambda record: 0.5 * (record.plain_before_ns + record.plain_after_ns) / 1e9,
            _LONGEST_STALL,
        ),
        "block_s": Value(lambda record: record.block_ns / 1e9, _LONGEST_STALL),
        "steps_s": Value(lambda record: sum(record.step_ns) / 1e9, _LONGEST_STALL),
    },
    choose=_of_the_rank_that_stalled_longest,
)


def _of_training(blocks: pd.DataFrame) -> Any:
    return 1.0 + blocks["overhead_share"]


def _drift(controls: Controls) -> float:
    """Return how far the training time may be off: the share that is overhead moves."""
    estimate = controls.base_row.overhead_share
    overhead = max(0.0, estimate.value) if estimate else 0.0
    return in_part(controls.farther, overhead / (1.0 + overhead))


def _worth(base: pd.DataFrame, head: pd.DataFrame) -> Worth:
    """Return the ratios of training times that are worth the name.

    Five percent of the training time would hide an overhead that doubles from 3 % to 6 %. So the
    limit is what adds 5 % to the base's overhead, and at least 1 % to the training without
    checkpoints. Both must have grown: the share, and by more than 5 % the seconds of a checkpoint.
    Where training without checkpoints gets faster, the same seconds are a larger share of it, and
    nothing is slower.
    """
    base_share = float(base["overhead_share"].median())
    base_s = float(base["overhead_s"].median())
    share_change = float(head["overhead_share"].median()) - base_share
    seconds_change = float(head["overhead_s"].median()) - base_s
    known_share = max(0.0, base_share)
    growth = max(OVERHEAD_FLOOR, (TOLERANCE - 1.0) * known_share)
    limit = 1.0 + growth / (1.0 + known_share)
    grew_together = share_change * seconds_change > 0
    seconds_matter = abs(seconds_change) > (TOLERANCE - 1.0) * abs(base_s)
    return Worth(limit if grew_together and seconds_matter else math.inf, limit)


TRAINING = Cost("training", "times that without", _of_training, drift=_drift, worth=_worth)


@dataclass(kw_only=True)
class TrainRow(Sampled, Row):
    """The cost of a checkpoint every `every` steps to a training loop. Seconds are per checkpoint.

    The overhead is the sum of the stall, of the slowdown and of the back-pressure.
    """

    loads_back: ClassVar[bool] = True

    every: int = identity_column(
        "steps between two checkpoints",
        heading="every",
        text=lambda row: interval_in_words(row.every).removeprefix("every "),
    )
    step_s: Estimate | None = column(
        "one training step without checkpoints",
        heading="step",
        unit="s",
        of=BLOCKS,
        derived=lambda blocks: blocks["plain_s"] / blocks["steps"],
    )
    overhead_s: Estimate | None = column(
        "what one checkpoint adds to the training time, with its 95 % interval: stall, slowdown "
        "and back-pressure",
        heading="overhead",
        unit="s",
        text=lambda row: text.spread_duration(row.overhead_s),
        of=BLOCKS,
        derived=lambda blocks: (blocks["block_s"] - blocks["plain_s"]) / blocks["checkpoints"],
        summary=location,
    )
    overhead_share: Estimate | None = column(
        "the same as a share of the training time without checkpoints",
        heading="of training",
        unit="ratio",
        text=lambda row: text.percent(row.overhead_share),
        of=BLOCKS,
        derived=lambda blocks: blocks["block_s"] / blocks["plain_s"] - 1.0,
        summary=location,
        compared=TRAINING,
    )
    stall_s: Estimate | None = column(
        "time blocked in the save",
        heading="stall",
        unit="s",
        of=BLOCKS,
        sample=lambda record: (
            (sum(record.save_ns) + sum(record.staged_ns)) / record.checkpoints / 1e9
        ),
        over_ranks=_LONGEST_STALL,
        summary=location,
    )
    stall_copies: Estimate | None = column(
        "the stall as a multiple of one copy of the state in memory", unit="ratio"
    )
    stall_transfers: Estimate | None = stall_transfers_column()
    slowdown_s: Estimate | None = column(
        "how much longer the steps take meanwhile",
        heading="slowdown",
        unit="s",
        of=BLOCKS,
        derived=lambda blocks: (blocks["steps_s"] - blocks["plain_s"]) / blocks["checkpoints"],
        summary=location,
    )
    back_pressure_s: Estimate | None = column(
        "what the loop waits for one checkpoint before it may begin the next",
        heading="back-pressure",
        unit="s",
        of=BLOCKS,
        sample=lambda record: sum(record.finished_ns) / record.checkpoints / 1e9,
        over_ranks=_LONGEST_STALL,
        summary=location,
    )
    unflushed_s: Estimate | None = column(
        "what flushing the files to the disk then still takes",
        heading="unflushed",
        unit="s",
        of=BLOCKS,
        sample=lambda record: record.sync_ns / record.checkpoints / 1e9,
        over_ranks=slowest,
        summary=location,
    )
    samples: int = samples_column("blocks of training")
    disturbed: int = column("how many blocks stood between unequal ones without", default=0)
    used_disturbed: int = used_disturbed_column()
    processes: int = column("how many processes trained", default=0)
    state_bytes: int | None = state_bytes_column()
    file_bytes: int | None = column(
        "bytes of all files of one checkpoint",
        unit="bytes",
        of=BLOCKS,
        over_ranks=largest,
        summary=lambda blocks, name: int(blocks[name].median()),
        compared=FileBytes(),
    )
    memory_copy_s: float | None = memory_copy_column()
    to_host_s: float | None = to_host_column()
    to_device_s: float | None = to_device_column()
    verified: bool = verified_column("whether every covered byte of the last checkpoint came back")
    overhead_samples: Samples | None = field(default=None, repr=False)


def rows(items: Sequence[Wanted], records: RunRecords) -> list[TrainRow]:
    """Derive the row of every case."""
    return [_row(item, records) for item in items]


def _row(item: Wanted, records: RunRecords) -> TrainRow:
    case = item.case
    row = TrainRow(**identity(item))
    add_state(row, case.id, records)
    if row.fail(records.failures(case.id)):
        return row  # wrong bytes yield no number
    _add_blocks(row, records.samples_of(BLOCKS, TrainRow, case.id), item.samples)
    row.verified = is_verified(item, records)
    if row.overhead_s is None or not row.verified:
        row.interrupt()
    return row


def _add_blocks(row: TrainRow, blocks: pd.DataFrame, wanted: int) -> None:
    used = add_samples(row, BLOCKS, blocks, wanted)
    if used is None:
        return
    row.overhead_samples = samples_of(used, "overhead_s")
    if row.memory_copy_s:
        copies = used["stall_s"] / row.memory_copy_s
        row.stall_copies = location(used.assign(copies=copies), "copies")
    if row.to_host_s:
        transfers = used["stall_s"] / row.to_host_s
        row.stall_transfers = location(used.assign(transfers=transfers), "transfers")
