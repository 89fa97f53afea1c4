"""What a checkpoint costs: the rows of the cost experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from harness.analysis import statistics
from harness.analysis.frame import Measured, usable
from harness.analysis.row import Row, Wanted, identity
from harness.analysis.statistics import Estimate, Samples
from harness.experiments.cost.records import OpenedRecord


@dataclass(kw_only=True)
class CostRow(Row):
    """What saves and loads of one case cost; an Estimate is None where nothing could be measured."""

    samples: int = 0
    load_samples: int = 0
    disturbed: int = 0
    used_disturbed: int = 0  # of `samples`: where too few were undisturbed, all count
    processes: int = 0
    state_bytes: int | None = None
    covered_bytes: int | None = None
    file_bytes: int | None = None
    files: int | None = None
    peak_memory_bytes: int | None = None
    # user and system time of a save until it is durable, all threads; not that of child processes
    cpu_s: float | None = None
    load_cache: str | None = None
    backing: str | None = None
    ceiling_direct: bool | None = None
    straggler: float | None = None  # the last rank's time over the median rank's
    # ranks that wrote a share worth the name; None where one record speaks for all
    writers: int | None = None
    largest_share: float | None = None  # of the bytes, by the rank that wrote most
    durability: str = "unknown"
    data_durability: str = "unknown"
    durability_reason: str = ""
    writes: int | None = None
    write_median_bytes: int | None = None
    fsyncs: int | None = None
    renames: int | None = None
    verified: bool = False
    memory_copy_s: float | None = None
    device_copy_s: float | None = None
    # to make and open the method in a process that saves, by its slowest rank
    open_s: Estimate | None = None
    stall_s: Estimate | None = None
    # the stall as a multiple of a copy of the state in memory, taken beside it
    stall_copies: Estimate | None = None
    finished_s: Estimate | None = None
    durable_s: Estimate | None = None
    load_s: Estimate | None = None
    ceiling_write_s: Estimate | None = None
    ceiling_read_s: Estimate | None = None
    write_efficiency: Estimate | None = None
    read_efficiency: Estimate | None = None
    durable_samples: Samples | None = field(default=None, repr=False)

    @property
    def above_ceiling(self) -> bool:
        """Whether a save or a load beat its ceiling beyond the interval: then the ceiling, not the method, is in doubt."""
        return any(
            share is not None and share.is_above(1.0)
            for share in (self.write_efficiency, self.read_efficiency)
        )


def row(item: Wanted, found: Measured) -> CostRow:
    """Derive the row of one case."""
    case = item.case
    row = CostRow(**identity(item))
    _add_state(row, case.id, found)
    _add_syscalls(row, case.id, found)
    if row.fail(found.failures.get(case.id, [])):
        return row  # wrong bytes yield no number
    row.open_s = _open_s(found.opened.get(case.id, []))
    _add_saves(row, found.saves[found.saves["case"] == case.id], item.samples)
    _add_loads(row, found.loads[found.loads["case"] == case.id], item.samples)
    row.verified = len(found.verified.get(case.id, ())) >= item.processes * case.world
    if row.durable_s is None or row.load_s is None:
        row.status, row.reason = "skipped", "not measured to the end: the run was interrupted"
    return row


def _add_state(row: CostRow, case: str, found: Measured) -> None:
    state = found.states.get(case)
    if state is None:
        return
    row.state_bytes, row.covered_bytes = state.state_bytes, state.covered_bytes
    row.memory_copy_s = found.memory_copy_s(case)
    row.device_copy_s = state.device_copy_ns / 1e9 or None


def _add_syscalls(row: CostRow, case: str, found: Measured) -> None:
    calls = found.syscalls.get(case)
    if calls is None:
        return
    row.durability, row.data_durability, row.durability_reason = (
        calls.durability,
        calls.data_durability,
        calls.reason,
    )
    if calls.durability != "unknown":
        row.writes, row.write_median_bytes = calls.writes, calls.write_median_bytes
        row.fsyncs, row.renames = calls.fsyncs, calls.renames


def _open_s(opened: Sequence[OpenedRecord]) -> Estimate | None:
    """One value a process; None of runs before schema 7, which did not say."""
    last_ns = {record.process: record.open_ns for record in opened}
    if not last_ns:
        return None
    return statistics.median(
        Samples(np.array(list(last_ns.values())) / 1e9, np.array(list(last_ns)))
    )


def _add_saves(row: CostRow, samples: pd.DataFrame, wanted: int) -> None:
    if samples.empty or samples["warmup"].all():
        return
    row.disturbed = int(samples["disturbed"][~samples["warmup"]].sum())
    used = usable(samples, wanted)
    row.samples, row.processes = len(used), used["process"].nunique()
    row.used_disturbed = int(used["disturbed"].sum())
    row.file_bytes, row.files = int(used["file_bytes"].median()), int(used["files"].median())
    row.peak_memory_bytes, row.cpu_s = int(used["peak_bytes"].max()), float(used["cpu_s"].median())
    row.backing, row.ceiling_direct = str(used["backing"].max()), bool(used["direct"].all())
    row.stall_s, row.finished_s = _median(used, "stall_s"), _median(used, "finished_s")
    # records of before schema 6 have the state's alone
    copies_s = used["copy_s"].fillna(row.memory_copy_s or float("nan"))
    if copies_s.notna().all():
        row.stall_copies = _median(used.assign(copies=used["stall_s"] / copies_s), "copies")
    row.durable_s, row.ceiling_write_s = _median(used, "durable_s"), _median(used, "ceiling_s")
    row.write_efficiency = _median(used, "efficiency")
    row.durable_samples = _samples(used, "durable_s")
    if row.world > 1:
        row.straggler = _number(used["straggler"])
        row.largest_share, row.writers = (
            _number(used["largest_share"]),
            int(used["writers"].median()) or None,
        )


def _add_loads(row: CostRow, samples: pd.DataFrame, wanted: int) -> None:
    if samples.empty or samples["warmup"].all():
        return
    used = usable(samples, wanted)
    row.load_samples = len(used)
    row.load_s, row.ceiling_read_s = _median(used, "load_s"), _median(used, "ceiling_s")
    caches = set(used["cache"])
    row.load_cache = caches.pop() if len(caches) == 1 else "mixed"
    if row.load_cache != "memory":  # where the disk is no ceiling
        row.read_efficiency = _median(used, "efficiency")


def _number(column: pd.Series[float]) -> float | None:
    """The median; None where there is no number at all."""
    return None if column.isna().all() else float(column.median())


def _samples(frame: pd.DataFrame, column: str) -> Samples:
    return Samples(frame[column].to_numpy(dtype=float), frame["process"].to_numpy(dtype=int))


def _median(frame: pd.DataFrame, column: str) -> Estimate:
    return statistics.median(_samples(frame, column))
