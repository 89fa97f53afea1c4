"""The rows of experiment `cost`: what saves and loads of one case cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd

from harness.analysis import statistics
from harness.analysis.columns import (
    always_true,
    column,
    every_rank,
    identity_column,
    largest,
    median,
    middle_count,
    middle_number,
    most,
    samples_of,
    slowest,
)
from harness.analysis.compared import FileBytes, Rank
from harness.analysis.records import RunRecords
from harness.analysis.row import COVERAGE, Row, Wanted, identity, verified_column
from harness.analysis.samples import summed_up, usable
from harness.analysis.statistics import Estimate, Samples
from harness.experiments.cost import cells
from harness.experiments.cost.plausible import FastestRaw, marks_of_loads, marks_of_saves
from harness.experiments.cost.records import OpenedRecord, UpdatesRecord
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
    STALL_FLOOR_S,
    ceiling_s,
    durable_s,
    finished_s,
    growth_at_the_end,
    growth_bytes,
)
from harness.wire.records import StateRecord, SyscallsRecord, VerifiedRecord


@dataclass(kw_only=True)
class CostRow(Row):
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
    covers: str = identity_column(
        "what comes back: weights, weights+optimizer, or full (with random generators and position "
        "in the data)",
        heading="covers",
        left_aligned=True,
        compared=Rank("coverage", COVERAGE),
    )
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
    samples: int = column(
        "how many saves the medians are of. In brackets, with ~, is how many of them were "
        "disturbed",
        default=0,
        heading="n",
        text=cells.count_text,
    )
    disturbed: int = column(
        "how many saves stood between unequal ceilings, or on a device that was busy with others",
        default=0,
    )
    used_disturbed: int = column(
        "how many of the samples were disturbed; all count where too few were not", default=0
    )
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
        "how many ranks wrote a share worth the name",
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
        "a load in another process, after the files had left the page cache",
        heading="cold load",
        unit="s",
        text=cells.load_text,
        of=LOADS,
        sample=lambda record: record.load_ns / 1e9,
        over_ranks=slowest,
        compared=LOAD_IN_SECONDS,
    )
    load_samples: int = column("how many loads the medians are of", default=0)
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
        "save",
        heading="open",
        unit="s",
        shown=cells.has_open,
    )
    load_open_s: Estimate | None = column(
        "the same before each load, in the process that loads",
        heading="load open",
        unit="s",
        shown=cells.has_load_open,
        of=LOADS,
        sample=lambda record: record.open_ns / 1e9 or float("nan"),
        over_ranks=slowest,
    )
    peak_memory_bytes: int | None = column(
        "peak memory of a save beside the state, as a multiple of the state: the largest rank's, "
        "child processes included",
        heading="save memory",
        unit="bytes",
        per="state_bytes",
        text=cells.memory_text,
        of=SAVES,
        sample=lambda record: record.usage.peak_rss_bytes + record.usage.children_peak_bytes,
        over_ranks=largest,
        summary=most,
    )
    memory_growth_bytes: int | None = column(
        "growth of a process's memory from its first save to its last, as a multiple of the state",
        heading="growth",
        unit="bytes",
        per="state_bytes",
        text=cells.growth_text,
        of=SAVES,
        derived=growth_bytes,
        summary=growth_at_the_end,
    )
    load_peak_memory_bytes: int | None = column(
        "peak memory of a load beside the state that it fills, as a multiple of the state",
        heading="load memory",
        unit="bytes",
        per="state_bytes",
        text=cells.load_memory_text,
        of=LOADS,
        sample=lambda record: record.usage.peak_rss_bytes + record.usage.children_peak_bytes,
        over_ranks=largest,
        summary=most,
    )
    state_bytes: int | None = column("bytes of the state in memory, over all ranks", unit="bytes")
    covered_bytes: int | None = column("bytes that the method saves of it", unit="bytes")
    file_bytes: int | None = column(
        "bytes of the files over bytes of the state in memory",
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
        "user and system time of a save until it is durable, all threads, without child processes",
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
    memory_copy_s: float | None = column("one copy of the state in memory", unit="s")
    device_copy_s: float | None = column("one copy of the state off its device", unit="s")
    verified: bool = verified_column(
        "whether every covered byte came back, from a save that overlapped a training step"
    )
    durable_samples: Samples | None = field(default=None, repr=False)

    @property
    def above_ceiling(self) -> bool:
        """Whether a save or a load beat its ceiling beyond the interval.

        Then the ceiling is in doubt, and not the method.
        """
        shares = (self.write_efficiency, self.read_efficiency)
        return any(share is not None and share.is_above(1.0) for share in shares)

    @property
    def is_unfinished(self) -> bool:
        """Return whether the run was interrupted before a process had loaded the checkpoint."""
        if self.status == "ok":
            return not self.verified
        return self.status == "skipped"

    @property
    def write_ceiling_s(self) -> float | None:
        """The seconds of a raw write beside its saves."""
        return self.ceiling_write_s.value if self.ceiling_write_s else None

    @property
    def copy_s(self) -> float | None:
        """The seconds of one copy of its state in memory."""
        return self.memory_copy_s


def rows(items: Sequence[Wanted], records: RunRecords) -> list[CostRow]:
    """Derive the row of every case, and what more ranks change."""
    from harness.experiments.cost.scaling import add_slowdowns

    fastest = FastestRaw.of(records)
    built = [_row(item, records, fastest) for item in items]
    add_slowdowns(built)
    return built


def ordered(rows: Sequence[CostRow]) -> list[CostRow]:
    """Return the rows as a table lists them: a method's worlds together, the smallest first."""
    from harness.experiments.cost.scaling import is_scaling, series

    if not is_scaling(rows):
        return list(rows)
    return [member.row for members in series(rows) for member in members]


def _row(item: Wanted, records: RunRecords, fastest: FastestRaw) -> CostRow:
    case = item.case
    row = CostRow(**identity(item))
    _add_state(row, case.id, records)
    _add_syscalls(row, case.id, records)
    if row.fail(records.failures(case.id)):
        return row  # wrong bytes yield no number
    opened = records.of(OpenedRecord, case.id)
    row.open_s = _open_s(opened)
    saves = records.samples_of(SAVES, CostRow, case.id)
    loads = records.samples_of(LOADS, CostRow, case.id)
    row.waits_in_step_s = _waits_in_step(records.of(UpdatesRecord, case.id))
    _add_saves(row, saves, item.samples)
    _add_loads(row, loads, item.samples)
    if not item.files:
        _leave_out_files(row)
    row.marks += [*marks_of_saves(item, saves, fastest), *marks_of_loads(loads, opened, fastest)]
    row.verified = is_verified(item, records)
    if row.stall_s is None or row.load_s is None:
        row.interrupt()
    return row


def _leave_out_files(row: CostRow) -> None:
    """Leave out what only files have. What is in memory alone is never durable."""
    row.durable_s = row.write_efficiency = row.durable_samples = None
    row.file_bytes = row.files = None
    row.durability = row.data_durability = "none"
    row.durability_reason = "the method keeps checkpoints in memory alone"


def is_verified(item: Wanted, records: RunRecords) -> bool:
    """Return whether every rank of every process has verified its load."""
    verified: set[tuple[int, int]] = set()
    for record in records.of(VerifiedRecord, item.case.id):
        for rank in range(record.rank, record.rank + record.ranks):
            verified.add((record.process, rank))
    return len(verified) >= item.processes * item.case.world


def _add_state(row: CostRow, case: str, records: RunRecords) -> None:
    state = records.last(StateRecord, case)
    if state is None:
        return
    row.state_bytes = state.state_bytes
    row.covered_bytes = state.covered_bytes
    row.memory_copy_s = records.memory_copy_s(case)
    row.device_copy_s = state.device_copy_ns / 1e9 or None


def _add_syscalls(row: CostRow, case: str, records: RunRecords) -> None:
    calls = records.last(SyscallsRecord, case)
    if calls is None:
        return
    row.durability = calls.durability
    row.data_durability = calls.data_durability
    row.durability_reason = calls.reason
    if calls.durability == "unknown":
        return
    row.writes = calls.writes
    row.write_median_bytes = calls.write_median_bytes
    row.fsyncs = calls.fsyncs
    row.renames = calls.renames


def _open_s(opened: Sequence[OpenedRecord]) -> Estimate | None:
    """Return the median over processes; None for runs before schema 7, which did not say."""
    last_ns = {record.process: record.open_ns for record in opened}
    if not last_ns:
        return None
    seconds = np.array(list(last_ns.values())) / 1e9
    return statistics.median(Samples(seconds, np.array(list(last_ns))))


def _waits_in_step(updates: Sequence[UpdatesRecord]) -> Estimate | None:
    """Return by how much updates after `staged` are longer; None where that is not certain."""
    last = {record.process: record for record in updates}
    excess_s: list[float] = []
    processes: list[int] = []
    for process, record in last.items():
        pairs = zip(record.beside_raw_ns, record.after_staged_ns, strict=True)
        excess_s += [(after_ns - beside_ns) / 1e9 for beside_ns, after_ns in pairs]
        processes += [process] * len(record.beside_raw_ns)
    if not excess_s:
        return None
    excess = statistics.location(Samples(np.array(excess_s), np.array(processes)))
    return excess if excess.is_above(STALL_FLOOR_S) else None


def _add_saves(row: CostRow, samples: pd.DataFrame, wanted: int) -> None:
    if samples.empty or samples["warmup"].all():
        return
    row.disturbed = int(samples["disturbed"][~samples["warmup"]].sum())
    used = usable(samples, wanted)
    row.samples = len(used)
    row.processes = used["process"].nunique()
    row.used_disturbed = int(used["disturbed"].sum())
    if row.waits_in_step_s is not None:
        used = used.assign(stall_s=used["stall_s"] + row.waits_in_step_s.value)
    summed_up(row, SAVES, used)
    # Records before schema 6 have only the one copy of the state that was timed by itself.
    copies_s = used["copy_s"].fillna(row.memory_copy_s or float("nan"))
    row.stall_copies = median(used.assign(copies=used["stall_s"] / copies_s), "copies")
    row.durable_samples = samples_of(used, "durable_s")
    if row.world == 1:
        row.straggler = row.largest_share = row.writers = None


def _add_loads(row: CostRow, samples: pd.DataFrame, wanted: int) -> None:
    if samples.empty or samples["warmup"].all():
        return
    used = usable(samples, wanted)
    row.load_samples = len(used)
    summed_up(row, LOADS, used)
    if row.load_cache == "memory":  # where the disk is no ceiling
        row.read_efficiency = None


def _one_word(words: pd.Series[str], otherwise: str) -> str:
    different = set(words)
    return str(different.pop()) if len(different) == 1 else otherwise


def _worst_word(words: pd.Series[str], worst_last: Sequence[str]) -> str:
    return max(set(words), key=worst_last.index)
