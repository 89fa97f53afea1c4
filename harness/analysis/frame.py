"""Records as data frames: one row for each sample of the whole world, and what else is known of each case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from harness.experiments.cost.records import OpenedRecord, SaveRecord
from harness.experiments.parity.records import TrajectoryRecord
from harness.experiments.reshard.records import ReshardRecord
from harness.experiments.resume.records import InterruptRecord, ResumeRecord, StraightRecord
from harness.experiments.sizes.records import InventoryRecord, PayloadRecord, RepeatRecord
from harness.experiments.train.records import TrainingRecord
from harness.wire.records import (
    PERCENTILES,
    CalibrationRecord,
    FailureRecord,
    LoadRecord,
    OverheadRecord,
    Record,
    StateRecord,
    SyscallsRecord,
    VerifiedRecord,
    WorkerRecord,
)

# of the bytes of the one that wrote most: below it, a rank has written its logs
_WRITER_SHARE = 0.05
_KEY = ["case", "process", "index"]


@dataclass
class Measured:
    """The records of one run, or of runs that may be pooled, sorted by what they say."""

    saves: pd.DataFrame
    loads: pd.DataFrame
    trainings: pd.DataFrame
    states: dict[str, StateRecord] = field(default_factory=dict)
    # one of each process and rank
    memory_copies_ns: dict[str, list[int]] = field(default_factory=dict)
    opened: dict[str, list[OpenedRecord]] = field(default_factory=dict)
    syscalls: dict[str, SyscallsRecord] = field(default_factory=dict)
    failures: dict[str, list[FailureRecord]] = field(default_factory=dict)
    # case -> (process, rank)
    verified: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    overheads: list[OverheadRecord] = field(default_factory=list)
    workers: list[WorkerRecord] = field(default_factory=list)
    payloads: dict[str, list[PayloadRecord]] = field(default_factory=dict)
    inventories: dict[str, list[InventoryRecord]] = field(default_factory=dict)
    repeats: dict[str, list[RepeatRecord]] = field(default_factory=dict)
    trajectories: dict[str, TrajectoryRecord] = field(default_factory=dict)
    straight: dict[str, list[StraightRecord]] = field(default_factory=dict)
    interrupted: dict[str, list[InterruptRecord]] = field(default_factory=dict)
    resumed: dict[str, list[ResumeRecord]] = field(default_factory=dict)
    resharded: dict[str, list[ReshardRecord]] = field(default_factory=dict)
    calibrations: list[CalibrationRecord] = field(default_factory=list)

    def memory_copy_s(self, case: str) -> float:
        """One copy of a case's state in memory: the median over processes and ranks, any one of which may have been disturbed."""
        return float(np.median(self.memory_copies_ns[case])) / 1e9


def measured(records: Sequence[Record], worlds: dict[str, int]) -> Measured:
    """Sort the records; `worlds` gives each case's number of ranks.

    A sample that a rank has not reported is left out.
    """
    found = Measured(
        saves=_of_world(
            _saves(record for record in records if isinstance(record, SaveRecord)), worlds
        ),
        loads=_of_world(
            _loads(record for record in records if isinstance(record, LoadRecord)), worlds
        ),
        trainings=_trainings_of_world(
            [record for record in records if isinstance(record, TrainingRecord)], worlds
        ),
    )
    for record in records:
        match record:
            case StateRecord():
                found.states[record.case] = record
                found.memory_copies_ns.setdefault(record.case, []).append(record.memory_copy_ns)
            case OpenedRecord():
                found.opened.setdefault(record.case, []).append(record)
            case SyscallsRecord():
                found.syscalls[record.case] = record
            case FailureRecord():
                found.failures.setdefault(record.case, []).append(record)
            case VerifiedRecord():
                ranks = range(record.rank, record.rank + record.ranks)
                found.verified.setdefault(record.case, set()).update(
                    (record.process, rank) for rank in ranks
                )
            case CalibrationRecord():
                found.calibrations.append(record)
            case OverheadRecord():
                found.overheads.append(record)
            case WorkerRecord():
                found.workers.append(record)
            case PayloadRecord():
                found.payloads.setdefault(record.case, []).append(record)
            case InventoryRecord():
                found.inventories.setdefault(record.case, []).append(record)
            case RepeatRecord():
                found.repeats.setdefault(record.case, []).append(record)
            case StraightRecord():
                found.straight.setdefault(record.case, []).append(record)
            case InterruptRecord():
                found.interrupted.setdefault(record.case, []).append(record)
            case ResumeRecord():
                found.resumed.setdefault(record.case, []).append(record)
            case ReshardRecord():
                found.resharded.setdefault(record.case, []).append(record)
            case TrajectoryRecord():
                if record.rank == 0:
                    found.trajectories[record.case] = record
    return found


def usable(samples: pd.DataFrame, wanted: int) -> pd.DataFrame:
    """The samples that statistics are made of: the undisturbed ones, or all where they are fewer than half of those wanted."""
    warm = samples[~samples["warmup"]]
    undisturbed = warm[~warm["disturbed"]]
    return undisturbed if 2 * len(undisturbed) >= wanted else warm


def _saves(records: Iterable[SaveRecord]) -> pd.DataFrame:
    rows = [
        {
            "case": record.case,
            "process": record.process,
            "index": record.index,
            "rank": record.rank,
            "ranks": record.spread.ranks if record.spread else 1,
            "warmup": record.warmup,
            "disturbed": record.disturbed,
            "stall_s": (record.save_ns + record.staged_ns) / 1e9,
            "finished_s": (record.save_ns + record.staged_ns + record.finished_ns) / 1e9,
            "sync_s": record.sync_ns / 1e9,
            "copy_s": record.memory_copy_ns / 1e9 or float("nan"),
            "ceiling_s": 0.5 * (record.ceilings.before_ns + record.ceilings.after_ns) / 1e9,
            "direct": record.ceilings.direct,
            "settled": record.ceilings.settled,
            "covered_bytes": record.covered_bytes,
            "file_bytes": record.file_bytes,
            "files": record.file_count or len(record.files),
            "written_bytes": record.usage.written_bytes,
            "spread_straggler": _spread_straggler(record),
            "backing": record.backing.state,
            "cpu_s": (record.usage.cpu_user_ns + record.usage.cpu_system_ns) / 1e9,
            "peak_bytes": record.usage.peak_rss_bytes + record.usage.children_peak_bytes,
        }
        for record in records
    ]
    return pd.DataFrame(
        rows, columns=list(rows[0]) if rows else [*_KEY, "rank", "ranks", "warmup", "disturbed"]
    )


def _spread_straggler(record: SaveRecord) -> float:
    """The last rank's time over the middle one's, where one record speaks for all; else not a number."""
    if record.spread is None:
        return float("nan")
    percentiles = record.spread.duration_ns.percentiles
    return percentiles[-1] / percentiles[PERCENTILES.index(50)]


def _over_ranks(ranks: pd.DataFrame) -> pd.DataFrame:
    """How a sample's ranks differ: the last one's time over the median, the largest share of the bytes, and how many wrote any."""
    groups = ranks.groupby(_KEY)
    most, written = groups["written_bytes"].max(), groups["written_bytes"].sum()
    is_writer = ranks["written_bytes"] > _WRITER_SHARE * groups["written_bytes"].transform("max")
    writers = is_writer.groupby([ranks[name] for name in _KEY]).sum()
    whole = groups.size() == groups["ranks"].sum()
    straggler = groups["finished_s"].max() / groups["finished_s"].median()
    found = {
        "straggler": straggler.where(whole, groups["spread_straggler"].max()),
        "largest_share": (most / written).where(whole & (written > 0)),
        "writers": writers.where(whole, 0),
    }
    return pd.DataFrame(found).reset_index()


def _loads(records: Iterable[LoadRecord]) -> pd.DataFrame:
    rows = [
        {
            "case": record.case,
            "process": record.process,
            "index": record.index,
            "rank": record.rank,
            "ranks": record.spread.ranks if record.spread else 1,
            "warmup": record.warmup,
            "disturbed": record.disturbed,
            "load_s": record.load_ns / 1e9,
            "ceiling_s": 0.5 * (record.ceilings.before_ns + record.ceilings.after_ns) / 1e9,
            "direct": record.ceilings.direct,
            "settled": record.ceilings.settled,
            "cache": record.cache,
            "backing": record.backing.state,
        }
        for record in records
    ]
    return pd.DataFrame(
        rows, columns=list(rows[0]) if rows else [*_KEY, "rank", "ranks", "warmup", "disturbed"]
    )


def _complete(ranks: pd.DataFrame, worlds: dict[str, int]) -> pd.DataFrame:
    """What is left without the samples that a rank has not reported; a record may speak for several ranks."""
    ranks = ranks.drop_duplicates([*_KEY, "rank"])
    return ranks[ranks.groupby(_KEY)["ranks"].transform("sum") == ranks["case"].map(worlds)]


def _of_world(ranks: pd.DataFrame, worlds: dict[str, int]) -> pd.DataFrame:
    """One row a sample: the last rank's times after the common barrier, and anything that disturbed any rank."""
    if ranks.empty:
        return ranks
    ranks = _complete(ranks, worlds)
    others = (*_KEY, "rank", "ranks", "cache", "backing", "direct", "settled", "copy_s")
    numbers = [name for name in ranks.columns if name not in others]
    samples = ranks.groupby(_KEY, as_index=False).agg(
        {
            **dict.fromkeys(numbers, "max"),
            "backing": "max",
            "direct": "min",
            "settled": "min",
            **({"cache": "max"} if "cache" in ranks else {}),
            # any one of them may have been disturbed
            **({"copy_s": "median"} if "copy_s" in ranks else {}),
        }
    )
    if "finished_s" in samples:
        samples = samples.merge(_over_ranks(ranks), on=_KEY)
        samples["durable_s"] = samples["finished_s"] + samples["sync_s"]
        samples["efficiency"] = samples["ceiling_s"] / samples["durable_s"]
    else:
        samples["efficiency"] = samples["ceiling_s"] / samples["load_s"]
    return samples


def _trainings_of_world(records: Sequence[TrainingRecord], worlds: dict[str, int]) -> pd.DataFrame:
    """One row a block, with the times per checkpoint of the rank that stalled longest: the others wait for it in their steps."""
    rows = [
        {
            "case": record.case,
            "process": record.process,
            "index": record.index,
            "rank": record.rank,
            "ranks": record.spread.ranks if record.spread else 1,
            "warmup": record.warmup,
            "disturbed": record.disturbed,
            "checkpoints": record.checkpoints,
            "steps": record.checkpoints * record.every,
            "plain_s": 0.5 * (record.plain_before_ns + record.plain_after_ns) / 1e9,
            "block_s": record.block_ns / 1e9,
            "stall_s": (sum(record.save_ns) + sum(record.staged_ns)) / record.checkpoints / 1e9,
            "back_pressure_s": sum(record.finished_ns) / record.checkpoints / 1e9,
            "steps_s": sum(record.step_ns) / 1e9,
            "unflushed_s": record.sync_ns / record.checkpoints / 1e9,
            "file_bytes": record.file_bytes,
        }
        for record in records
    ]
    ranks = pd.DataFrame(
        rows, columns=list(rows[0]) if rows else [*_KEY, "rank", "ranks", "warmup", "disturbed"]
    )
    if ranks.empty:
        return ranks
    ranks = _complete(ranks, worlds).sort_values(["stall_s", "block_s"])
    # the parts of one rank add up: of the one that stalled longest
    blocks = ranks.groupby(_KEY, as_index=False).last()
    for name in ("unflushed_s", "disturbed", "file_bytes"):
        blocks[name] = ranks.groupby(_KEY)[name].max().to_numpy()
    blocks["step_s"] = blocks["plain_s"] / blocks["steps"]
    blocks["overhead_s"] = (blocks["block_s"] - blocks["plain_s"]) / blocks["checkpoints"]
    blocks["overhead_share"] = blocks["block_s"] / blocks["plain_s"] - 1.0
    blocks["slowdown_s"] = (blocks["steps_s"] - blocks["plain_s"]) / blocks["checkpoints"]
    return blocks
