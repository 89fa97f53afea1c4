"""Records as data frames: one row for each sample of the whole world, and what else is known of each case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from harness.record import (
    FailureRecord,
    InventoryRecord,
    LoadRecord,
    OverheadRecord,
    PayloadRecord,
    Record,
    RepeatRecord,
    SaveRecord,
    StateRecord,
    SyscallsRecord,
    TrajectoryRecord,
    VerifiedRecord,
    WorkerRecord,
)

_KEY = ["case", "process", "index"]


@dataclass
class Measured:
    """The records of one run, or of runs that may be pooled, sorted by what they say."""

    saves: pd.DataFrame
    loads: pd.DataFrame
    states: dict[str, StateRecord] = field(default_factory=dict)
    syscalls: dict[str, SyscallsRecord] = field(default_factory=dict)
    failures: dict[str, list[FailureRecord]] = field(default_factory=dict)
    verified: dict[str, set[tuple[int, int]]] = field(default_factory=dict)  # case -> (process, rank)
    overheads: list[OverheadRecord] = field(default_factory=list)
    workers: list[WorkerRecord] = field(default_factory=list)
    payloads: dict[str, list[PayloadRecord]] = field(default_factory=dict)
    inventories: dict[str, list[InventoryRecord]] = field(default_factory=dict)
    repeats: dict[str, list[RepeatRecord]] = field(default_factory=dict)
    trajectories: dict[str, TrajectoryRecord] = field(default_factory=dict)


def measured(records: Sequence[Record], worlds: dict[str, int]) -> Measured:
    """Sort the records; `worlds` gives each case's number of ranks. A sample that a rank has not reported is left out."""
    found = Measured(
        saves=_of_world(_saves(record for record in records if isinstance(record, SaveRecord)), worlds),
        loads=_of_world(_loads(record for record in records if isinstance(record, LoadRecord)), worlds),
    )
    for record in records:
        match record:
            case StateRecord():
                found.states[record.case] = record
            case SyscallsRecord():
                found.syscalls[record.case] = record
            case FailureRecord():
                found.failures.setdefault(record.case, []).append(record)
            case VerifiedRecord():
                found.verified.setdefault(record.case, set()).add((record.process, record.rank))
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
            "warmup": record.warmup,
            "disturbed": record.disturbed,
            "stall_s": (record.save_ns + record.staged_ns) / 1e9,
            "finished_s": (record.save_ns + record.staged_ns + record.finished_ns) / 1e9,
            "sync_s": record.sync_ns / 1e9,
            "ceiling_s": 0.5 * (record.ceilings.before_ns + record.ceilings.after_ns) / 1e9,
            "direct": record.ceilings.direct,
            "covered_bytes": record.covered_bytes,
            "file_bytes": record.file_bytes,
            "files": len(record.files),
            "backing": record.backing.state,
            "peak_bytes": record.usage.peak_rss_bytes + record.usage.children_peak_bytes,
        }
        for record in records
    ]
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else [*_KEY, "rank", "warmup", "disturbed"])


def _loads(records: Iterable[LoadRecord]) -> pd.DataFrame:
    rows = [
        {
            "case": record.case,
            "process": record.process,
            "index": record.index,
            "rank": record.rank,
            "warmup": record.warmup,
            "disturbed": record.disturbed,
            "load_s": record.load_ns / 1e9,
            "ceiling_s": 0.5 * (record.ceilings.before_ns + record.ceilings.after_ns) / 1e9,
            "direct": record.ceilings.direct,
            "cache": record.cache,
            "backing": record.backing.state,
        }
        for record in records
    ]
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else [*_KEY, "rank", "warmup", "disturbed"])


def _of_world(ranks: pd.DataFrame, worlds: dict[str, int]) -> pd.DataFrame:
    """One row a sample: the last rank's times after the common barrier, and anything that disturbed any rank."""
    if ranks.empty:
        return ranks
    complete = ranks.groupby(_KEY)["rank"].transform("nunique") == ranks["case"].map(worlds)
    numbers = [name for name in ranks.columns if name not in (*_KEY, "rank", "cache", "backing", "direct")]
    samples = (
        ranks[complete]
        .groupby(_KEY, as_index=False)
        .agg(
            {
                **dict.fromkeys(numbers, "max"),
                "backing": "max",
                "direct": "min",
                **({"cache": "max"} if "cache" in ranks else {}),
            }
        )
    )
    if "finished_s" in samples:
        samples["durable_s"] = samples["finished_s"] + samples["sync_s"]
        samples["efficiency"] = samples["ceiling_s"] / samples["durable_s"]
    else:
        samples["efficiency"] = samples["ceiling_s"] / samples["load_s"]
    return samples
