"""Fills in the row of one case from its records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.analysis import statistics
from harness.analysis.columns import median, samples_of
from harness.analysis.records import RunRecords
from harness.analysis.row import Wanted, identity
from harness.analysis.sampled import add_samples, add_state, is_verified
from harness.analysis.samples import summed_up, usable
from harness.analysis.statistics import Estimate, Samples
from harness.experiments.cost.plausible import FastestRaw, marks_of_loads, marks_of_saves
from harness.experiments.cost.records import PAIRS, OpenedRecord, UpdatesRecord
from harness.experiments.cost.rows import CostRow
from harness.experiments.cost.samples import LOADS, SAVES, STALL_FLOOR_S
from harness.wire.records import StateRecord, SyscallsRecord


def row_of(item: Wanted, records: RunRecords, fastest: FastestRaw) -> CostRow:
    """Return the row of a case, as far as its records go.

    `fastest` are the fastest raw transfers of the run.
    """
    case = item.case
    row = CostRow(**identity(item))
    add_state(row, case.id, records)
    _add_shares_of_the_state(row, case.id, records)
    _add_syscalls(row, records.last(SyscallsRecord, case.id))
    if row.fail(records.failures(case.id)):
        return row  # wrong bytes yield no number
    opened = records.of(OpenedRecord, case.id)
    saves = records.samples_of(SAVES, CostRow, case.id)
    loads = records.samples_of(LOADS, CostRow, case.id)
    row.open_s = _open_s(opened)
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


def _add_shares_of_the_state(row: CostRow, case: str, records: RunRecords) -> None:
    state = records.last(StateRecord, case)
    if state is not None:
        row.covered_bytes = state.covered_bytes
        row.device_copy_s = records.copy_s(case, lambda each: each.device_copy_ns)


def _add_syscalls(row: CostRow, calls: SyscallsRecord | None) -> None:
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
    if all(len(record.beside_raw_ns) < PAIRS for record in last.values()):
        return None
    excess_s: list[float] = []
    processes: list[int] = []
    for process, record in last.items():
        pairs = zip(record.beside_raw_ns, record.after_staged_ns, strict=True)
        excess_s += [(after_ns - beside_ns) / 1e9 for beside_ns, after_ns in pairs]
        processes += [process] * len(record.beside_raw_ns)
    excess = statistics.location(Samples(np.array(excess_s), np.array(processes)))
    return excess if excess.is_above(STALL_FLOOR_S) else None


def _add_saves(row: CostRow, samples: pd.DataFrame, wanted: int) -> None:
    used = add_samples(row, SAVES, row.counted(SAVES, samples), wanted)
    if used is None:
        return
    # Records before schema 6 have only the one copy of the state that was timed by itself.
    copies_s = used["copy_s"].fillna(row.memory_copy_s or float("nan"))
    row.stall_copies = median(used.assign(copies=used["stall_s"] / copies_s), "copies")
    if row.to_host_s:
        row.stall_transfers = median(
            used.assign(transfers=used["stall_s"] / row.to_host_s), "transfers"
        )
    row.durable_samples = samples_of(used, "durable_s")
    if row.world == 1:
        row.straggler = row.largest_share = row.writers = None


def _add_loads(row: CostRow, samples: pd.DataFrame, wanted: int) -> None:
    if samples.empty or samples["warmup"].all():
        return
    used = usable(samples, wanted)
    row.load_samples = len(used)
    row.load_used_disturbed = int(used["disturbed"].sum())
    summed_up(row, LOADS, used)
    if row.load_cache == "memory":  # where the disk is no ceiling
        row.read_efficiency = None
