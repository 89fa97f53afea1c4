"""The rows of experiment `cost`: what saves and loads of one case cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pandas as pd

from harness.analysis.columns import (
    always_true,
    column,
    every_rank,
    identity_column,
    largest,
    middle_count,
    middle_number,
    most,
    most_or_none,
    slowest,
)
from harness.analysis.compared import FileBytes, Rank
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, verified_column
from harness.analysis.sampled import (
    PER_STATE,
    Sampled,
    covers_column,
    memory_copy_column,
    samples_column,
    stall_transfers_column,
    state_bytes_column,
    to_device_column,
    to_host_column,
    used_disturbed_column,
)
from harness.analysis.samples import SampleTable
from harness.analysis.statistics import Estimate, Samples
from harness.experiments.cost import cells
from harness.experiments.cost.plausible import FastestRaw
from harness.experiments.cost.samples import (
    BACKING,
    CACHE,
    DURABILITY,
    DURABLE,
    LOAD,
    LOAD_IN_SECONDS,
    LOADS,
    SAVES,
    STALL,
    ceiling_s,
    durable_s,
    finished_s,
    growth_at_the_end,
    growth_bytes,
)


@dataclass(kw_only=True)
class CostRow(Sampled, Row):
    """The cost of saves and loads of one case; None where nothing could be measured."""

    worlds_share_a_table: ClassVar[bool] = True
    is_titled_by_experiment: ClassVar[bool] = False
    loads_back: ClassVar[bool] = True

    world: int = identity_column(
        "how many processes saved together; + marks more than there are processors",
        heading="ranks",
        text=cells.ranks_text,
        shown=cells.has_several_worlds,
    )
    covers: str = covers_column()
    stall_s: Estimate | None = column(
        "how long training stands still: in save, and until the state may change again",
        heading="stall",
        unit="s",
        of=SAVES,
        sample=lambda record: (record.save_ns + record.staged_ns) / 1e9,
        over_ranks=slowest,
        compared=STALL,
    )
    stall_copies: Estimate | None = column(
        "the stall as a multiple of a copy of the state in memory, taken beside it",
        unit="ratio",
    )
    stall_transfers: Estimate | None = stall_transfers_column()
    waits_in_step_s: Estimate | None = column(
        "how much longer the optimizer's update takes after staged than beside a raw write. It is "
        "in the stall. Empty where the difference is within its interval",
        heading="waits in step",
        unit="s",
        shown=cells.has_waits_in_step,
    )
    finished_s: Estimate | None = column(
        "until the method says that the checkpoint is complete",
        unit="s",
        of=SAVES,
        sample=finished_s,
        over_ranks=slowest,
    )
    durable_s: Estimate | None = column(
        "until every file and every name is flushed to the disk, whatever the method itself did",
        heading="durable",
        unit="s",
        of=SAVES,
        derived=durable_s,
    )
    slowdown: Estimate | None = column(
        "durable over that of the method's smallest world, with its 95 % interval; for each byte "
        "where the state grows with the ranks",
        heading="to one rank's",
        unit="ratio",
        shown=cells.has_several_worlds,
    )
    ceiling_write_s: Estimate | None = column(
        "a raw write of the same bytes, just before and after each save",
        unit="s",
        of=SAVES,
        sample=ceiling_s,
        over_ranks=slowest,
    )
    write_efficiency: Estimate | None = column(
        "the time of a raw write of the same bytes, measured just before and after, over durable. "
        "1 is as fast as the disk. In brackets is the 95 % interval. * marks one that lies above "
        "1, so that the ceiling is in doubt",
        heading="share of ceiling",
        unit="ratio",
        text=cells.share_text,
        of=SAVES,
        derived=lambda samples: samples["ceiling_write_s"] / samples["durable_s"],
        compared=DURABLE,
    )
    samples: int = samples_column("saves")
    disturbed: int = column(
        "how many saves stood between unequal ceilings, or on a device that was busy with others",
        default=0,
    )
    used_disturbed: int = used_disturbed_column()
    processes: int = column("how many processes saved", default=0)
    straggler: float | None = column(
        "how much longer the last rank took than the median one",
        heading="last / median rank",
        unit="ratio",
        text=cells.straggler_text,
        shown=cells.has_several_ranks,
        of=SAVES,
        summary=middle_number,
    )
    writers: int | None = column(
        "how many ranks wrote more than 5 % of what the busiest rank wrote",
        heading="writers",
        text=cells.writers_text,
        shown=cells.has_several_ranks,
        of=SAVES,
        summary=middle_count,
    )
    largest_share: float | None = column(
        "the share of the bytes that the busiest rank wrote",
        unit="ratio",
        of=SAVES,
        summary=middle_number,
    )
    load_s: Estimate | None = column(
        "a load in another process, after the files had left the page cache. ~ marks a median of "
        "loads of which some were disturbed",
        heading="cold load",
        unit="s",
        text=cells.load_text,
        of=LOADS,
        sample=lambda record: record.load_ns / 1e9,
        over_ranks=slowest,
        compared=LOAD_IN_SECONDS,
    )
    load_samples: int = column("how many loads the medians are of", default=0)
    load_used_disturbed: int = column(
        "how many of these loads were disturbed; they count where too few others are there, or "
        "none of their process",
        default=0,
    )
    load_cache: str | None = column(
        "where the loads read from: cold is the device, warm the page cache. uncounted means that "
        "the files had left the page cache, and the file system does not count what is read",
        of=LOADS,
        sample=lambda record: record.cache,
        over_ranks=CACHE,
        summary=lambda samples, name: _one_word(samples[name], "mixed"),
    )
    ceiling_read_s: Estimate | None = column(
        "a raw read of the same bytes, just before and after each load",
        unit="s",
        of=LOADS,
        sample=ceiling_s,
        over_ranks=slowest,
    )
    read_efficiency: Estimate | None = column(
        "the time of a raw read of the same bytes over that of the load",
        unit="ratio",
        of=LOADS,
        derived=lambda samples: samples["ceiling_read_s"] / samples["load_s"],
        compared=LOAD,
    )
    open_s: Estimate | None = column(
        "the time to make the method ready for this state, once in each process, before its first "
        "save. What it imports is imported before",
        heading="open",
        unit="s",
        shown=cells.has_open,
    )
    load_open_s: Estimate | None = column(
        "the same before each load, in the process that loads; the disk need not be quiet then",
        heading="load open",
        unit="s",
        shown=cells.has_load_open,
        of=LOADS,
        sample=lambda record: record.open_ns / 1e9 or float("nan"),
        over_ranks=slowest,
    )
    peak_memory_bytes: int | None = column(
        "bytes of memory that a save takes beside the state at its peak: the largest rank's, child "
        f"processes included. {PER_STATE}",
        heading="save memory",
        unit="bytes",
        per="state_bytes",
        text=cells.memory_text,
        of=SAVES,
        sample=lambda record: record.usage.peak_rss_bytes + record.usage.children_peak_bytes,
        over_ranks=largest,
        summary=most,
    )
    device_extra_bytes: int | None = column(
        "bytes of the GPU's memory that a save takes beside the state at its peak, where the "
        f"framework counts them. {PER_STATE}",
        heading="GPU memory",
        unit="bytes",
        per="state_bytes",
        text=cells.device_memory_text,
        shown=cells.has_device_memory,
        of=SAVES,
        sample=lambda record: (
            float("nan") if record.device_extra_bytes is None else record.device_extra_bytes
        ),
        over_ranks=largest,
        summary=most_or_none,
    )
    memory_growth_bytes: int | None = column(
        f"bytes by which a process's memory grows from its first save to its last. {PER_STATE}",
        heading="growth",
        unit="bytes",
        per="state_bytes",
        text=cells.growth_text,
        of=SAVES,
        derived=growth_bytes,
        summary=growth_at_the_end,
    )
    load_peak_memory_bytes: int | None = column(
        "bytes of memory that a load takes at its peak beside the state that it fills. "
        f"{PER_STATE}",
        heading="load memory",
        unit="bytes",
        per="state_bytes",
        text=cells.load_memory_text,
        of=LOADS,
        sample=lambda record: record.usage.peak_rss_bytes + record.usage.children_peak_bytes,
        over_ranks=largest,
        summary=most,
    )
    state_bytes: int | None = state_bytes_column()
    covered_bytes: int | None = column("bytes that the method saves of it", unit="bytes")
    file_bytes: int | None = column(
        f"bytes of all files of a checkpoint. Every rank counts all of them. {PER_STATE}",
        heading="bytes",
        unit="bytes",
        per="state_bytes",
        of=SAVES,
        over_ranks=largest,
        summary=lambda samples, name: int(samples[name].median()),
        compared=FileBytes(),
    )
    files: int | None = column(
        "how many files a checkpoint is",
        of=SAVES,
        sample=lambda record: record.file_count or len(record.files),
        over_ranks=largest,
        summary=lambda samples, name: int(samples[name].median()),
    )
    cpu_s: float | None = column(
        "user and system time of a save until it is durable, all threads, without child processes. "
        "On several ranks it contains their waits for each other, in which MPI keeps asking",
        unit="s",
        of=SAVES,
        sample=lambda record: (record.usage.cpu_user_ns + record.usage.cpu_system_ns) / 1e9,
        over_ranks=slowest,
        summary=lambda samples, name: float(samples[name].median()),
    )
    backing: str | None = column(
        "whether memory was shown to be backed before the samples",
        of=SAVES,
        sample=lambda record: record.backing.state,
        over_ranks=BACKING,
        summary=lambda samples, name: _worst_word(samples[name], BACKING.worst_last),
    )
    ceiling_direct: bool | None = column(
        "whether the ceilings bypassed the page cache",
        of=SAVES,
        sample=lambda record: record.ceilings.direct,
        over_ranks=every_rank,
        summary=always_true,
    )
    durability: str = column(
        "from the system calls, the instant after which a power loss leaves the checkpoint whole. "
        "never (data …) says that the contents are flushed and only a name is not",
        default="unknown",
        heading="power-safe",
        text=cells.power_safe_text,
        left_aligned=True,
        compared=Rank(
            "safety after a power loss",
            DURABILITY,
            when_unknown="what survives a power loss is not known any more",
            reason="durability_reason",
        ),
    )
    data_durability: str = column(
        "the same over file contents alone, for file systems whose names survive by themselves",
        default="unknown",
        compared=Rank("safety of the data after a power loss", DURABILITY),
    )
    durability_reason: str = column("why that instant", default="")
    writes: int | None = column("how many system calls wrote the files")
    write_median_bytes: int | None = column("the median bytes of such a call", unit="bytes")
    fsyncs: int | None = column("how many files were flushed")
    renames: int | None = column("how many files were renamed")
    memory_copy_s: float | None = memory_copy_column()
    device_copy_s: float | None = column("one copy of the state off its device", unit="s")
    to_host_s: float | None = to_host_column()
    to_device_s: float | None = to_device_column()
    verified: bool = verified_column(
        "whether every covered byte came back, from a save that overlapped a training step"
    )
    durable_samples: Samples | None = field(default=None, repr=False)

    @property
    def above_ceiling(self) -> bool:
        """Return whether a save or a cold load beat its ceiling beyond the interval.

        Then the ceiling is in doubt, and not the method. A load from the page cache is no load from
        the disk, so it may be faster.
        """
        shares = [self.write_efficiency]
        if self.load_cache == "cold":
            shares.append(self.read_efficiency)
        return any(share is not None and share.is_above(1.0) for share in shares)

    @property
    def write_ceiling_s(self) -> float | None:
        """The seconds of a raw write beside its saves."""
        return self.ceiling_write_s.value if self.ceiling_write_s else None

    def counted(self, table: SampleTable, samples: pd.DataFrame) -> pd.DataFrame:
        """Return the samples with the waits in step added to each stall."""
        if table is not SAVES or self.waits_in_step_s is None:
            return samples
        return samples.assign(stall_s=samples["stall_s"] + self.waits_in_step_s.value)


def rows(items: Sequence[Wanted], records: RunRecords) -> list[CostRow]:
    """Derive the row of every case, and what more ranks change."""
    from harness.experiments.cost.from_records import row_of
    from harness.experiments.cost.scaling import add_slowdowns

    fastest = FastestRaw.of(records)
    built = [row_of(item, records, fastest) for item in items]
    add_slowdowns(built)
    return built


def ordered(rows: Sequence[CostRow]) -> list[CostRow]:
    """Return the rows as a table lists them: a method's worlds together, the smallest first."""
    from harness.experiments.cost.scaling import is_scaling, series

    if not is_scaling(rows):
        return list(rows)
    return [member.row for members in series(rows) for member in members]


def _one_word(words: pd.Series[str], otherwise: str) -> str:
    different = set(words)
    return str(different.pop()) if len(different) == 1 else otherwise


def _worst_word(words: pd.Series[str], worst_last: Sequence[str]) -> str:
    return max(set(words), key=worst_last.index)
