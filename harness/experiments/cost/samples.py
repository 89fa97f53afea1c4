"""The samples of experiment `cost`, and what `compare` tests of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from harness.analysis.columns import every_rank, largest, middle, slowest, worst
from harness.analysis.compared import (
    IN_CEILINGS,
    Circumstances,
    Condition,
    Cost,
    as_the_copy_does,
    beside_the_disk,
)
from harness.analysis.samples import KEY, SampleTable, Value
from harness.experiments.cost.records import SaveRecord
from harness.wire.records import PERCENTILES, CalibrationRecord, LoadRecord

STALL_FLOOR_S = 1e-3  # a shorter stall is not noticed in anybody's training
DURABILITY = ("never", "at finished", "at return")
BACKING = worst("backed", "physical", "unknown")
CACHE = worst("cold", "memory", "uncounted", "unknown", "warm")
# Below this share of the bytes of the rank that wrote most, a rank has written only its logs.
_WRITER_SHARE = 0.05


def ceiling_s(record: SaveRecord | LoadRecord) -> float:
    """Return the mean of the two raw transfers beside a sample, in seconds."""
    return 0.5 * (record.ceilings.before_ns + record.ceilings.after_ns) / 1e9


def finished_s(record: SaveRecord) -> float:
    """Return the seconds until the method says that the checkpoint is complete."""
    return (record.save_ns + record.staged_ns + record.finished_ns) / 1e9


def _spread_straggler(record: SaveRecord) -> float:
    """Return the last rank's time over the median rank's, where one record speaks for all."""
    if record.spread is None:
        return float("nan")
    percentiles = record.spread.duration_ns.percentiles
    return percentiles[-1] / percentiles[PERCENTILES.index(50)]


def _differences_of_ranks(ranks: pd.DataFrame) -> pd.DataFrame:
    """Return how a sample's ranks differ.

    The values are the last rank's time over the median rank's, the largest share of the bytes, and
    how many ranks wrote more than `_WRITER_SHARE` of what the busiest one wrote. A record that
    speaks for all ranks tells only the first.
    """
    groups = ranks.groupby(KEY)
    written = groups["written_bytes"].sum()
    largest_part = groups["written_bytes"].max()
    limit = _WRITER_SHARE * groups["written_bytes"].transform("max")
    is_writer = ranks["written_bytes"] > limit
    writers = is_writer.groupby([ranks[name] for name in KEY]).sum()
    every_rank_reported = groups.size() == groups["ranks"].sum()
    straggler = groups["finished_s"].max() / groups["finished_s"].median()
    has_share = every_rank_reported & (written > 0)
    found = {
        "straggler": straggler.where(every_rank_reported, groups["spread_straggler"].max()),
        "largest_share": (largest_part / written).where(has_share),
        "writers": writers.where(every_rank_reported, 0),
    }
    return pd.DataFrame(found).reset_index()


def growth_bytes(samples: pd.DataFrame) -> Any:
    """Return how much resident memory grew from a process's first counted save to each save.

    Warm-ups are left out, because in them a process touches much of its memory for the first time.
    """
    counted = samples["resident_bytes"].where(~samples["warmup"])
    by_process = counted.groupby([samples["case"], samples["process"]])
    return counted - by_process.transform("first")


def growth_at_the_end(samples: pd.DataFrame, name: str) -> int:
    """Return the growth up to the last save of a process, of the process that grew most."""
    return int(samples.groupby("process")[name].last().max())


def durable_s(samples: pd.DataFrame) -> Any:
    """Return the seconds until every file and name is flushed."""
    return samples["finished_s"] + samples["sync_s"]


SAVES = SampleTable(
    SaveRecord,
    values={
        "sync_s": Value(lambda record: record.sync_ns / 1e9, slowest),
        # The copy of any one rank may have been disturbed. Older records have none.
        "copy_s": Value(lambda record: record.memory_copy_ns / 1e9 or float("nan"), middle),
        "settled": Value(lambda record: record.ceilings.settled, every_rank),
        "direct": Value(lambda record: record.ceilings.direct, every_rank),
        "written_bytes": Value(lambda record: record.usage.written_bytes, largest),
        "resident_bytes": Value(lambda record: record.usage.rss_before_bytes, largest),
        "spread_straggler": Value(_spread_straggler, largest),
    },
    across=_differences_of_ranks,
)
LOADS = SampleTable(
    LoadRecord,
    values={
        "settled": Value(lambda record: record.ceilings.settled, every_rank),
        "direct": Value(lambda record: record.ceilings.direct, every_rank),
        "file_bytes": Value(lambda record: record.file_bytes, largest),
        "open_read_bytes": Value(lambda record: record.open_read_bytes, largest),
    },
)


def _write_requests(record: CalibrationRecord) -> tuple[int, ...]:
    return (record.direct, record.write_block_bytes, record.write_depth)


def _read_requests(record: CalibrationRecord) -> tuple[int, ...]:
    return (record.direct, record.read_block_bytes, record.read_depth)


def _same_requests(requests: Callable[[CalibrationRecord], tuple[int, ...]]) -> Condition:
    """Return the condition that both runs made their ceilings of the same requests."""

    def value(side: Circumstances) -> tuple[int, ...] | None:
        return requests(side.calibration) if side.calibration else None

    return Condition(
        value=value,
        why=lambda base, head: (
            "the ceilings of the two sides were made of requests of unlike sizes or depths"
        ),
        advice="Each run found its own requests the fastest. Runs of like size in one results "
        "folder share them, and so do the sides of ab",
    )


def _settled(side: Circumstances) -> frozenset[bool] | None:
    return frozenset(side.samples["settled"]) or None


def _settled_in_words(base: frozenset[bool], head: frozenset[bool]) -> str:
    return (
        "the ceilings of one side were taken without memory having been backed before, as older "
        "versions did"
    )


# A ceiling on memory that the host has taken back is several times slower.
_SETTLED_CEILINGS = Condition(
    value=_settled,
    why=_settled_in_words,
    advice="Measure that side anew",
    of_now=frozenset({True}),
)
# What the kernel still held is read without the disk.
_SAME_CACHE = Condition(
    value=lambda side: side.row.load_cache,
    why=lambda base, head: f"the loads were {base} and are {head}",
)


def _is_without_the_disk(row: Any) -> bool:
    """Return whether the loads came out of a cache or memory, where the disk is no ceiling."""
    return row.load_cache in ("warm", "memory")


def _has_files(row: Any) -> bool:
    """Return whether a checkpoint has files. What is in memory alone is never durable."""
    return bool(row.durability != "none")


DURABLE = Cost(
    name="durable",
    unit=IN_CEILINGS,
    cost=lambda samples: 1.0 / samples["write_efficiency"],
    applies_to=_has_files,
    conditions=(_same_requests(_write_requests), _SETTLED_CEILINGS),
    drift=beside_the_disk,
)
STALL = Cost("stall", "s", lambda samples: samples["stall_s"].clip(lower=STALL_FLOOR_S))
LOAD = Cost(
    name="load",
    unit=IN_CEILINGS,
    cost=lambda samples: 1.0 / samples["read_efficiency"],
    applies_to=lambda row: not _is_without_the_disk(row),
    conditions=(_SAME_CACHE, _same_requests(_read_requests), _SETTLED_CEILINGS),
    drift=beside_the_disk,
)
LOAD_IN_SECONDS = Cost(
    name="load",
    unit="s",
    cost=lambda samples: samples["load_s"],
    applies_to=_is_without_the_disk,
    conditions=(_SAME_CACHE,),
    drift=as_the_copy_does,
)
