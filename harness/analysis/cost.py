"""One row per case: the stable interface of `show --format json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pandas as pd

from harness.analysis import statistics
from harness.analysis.frame import Measured, measured, usable
from harness.analysis.statistics import Estimate, Samples
from harness.case import Case
from harness.record import SCHEMA, FailureRecord, Record

_WORST_FIRST = ("failed", "unsupported", "skipped")


@dataclass(frozen=True)
class Wanted:
    """A case of the plan, and how many samples it was to have over all processes."""

    case: Case
    samples: int
    processes: int
    default: bool = False  # the framework's own first choice


@dataclass
class Row:
    """What is known of one case. Times in seconds, sizes in bytes; an Estimate is None where nothing could be measured."""

    framework: str
    method: str
    workload: str
    preset: str
    precision: str
    device: str
    world: int
    experiment: str
    default: bool
    covers: str
    status: str = "ok"
    phase: str = ""
    reason: str = ""
    samples: int = 0
    load_samples: int = 0
    disturbed: int = 0
    processes: int = 0
    state_bytes: int | None = None
    covered_bytes: int | None = None
    file_bytes: int | None = None
    files: int | None = None
    peak_memory_bytes: int | None = None
    load_cache: str | None = None
    backing: str | None = None
    ceiling_direct: bool | None = None
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
    stall_s: Estimate | None = None
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
        return any(share is not None and share.low > 1.0 for share in (self.write_efficiency, self.read_efficiency))

    def to_json(self) -> dict[str, Any]:
        """The row as flat JSON values: each estimate as NAME, NAME_low and NAME_high."""
        flat: dict[str, Any] = {"schema": SCHEMA}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.type == "Estimate | None":
                flat |= _flat(item.name, value)
            elif item.name != "durable_samples":
                flat[item.name] = value
        return flat


def rows(wanted: Sequence[Wanted], records: Sequence[Record]) -> list[Row]:
    """Derive a row for every case of a plan, in the plan's order."""
    found = measured(records, {item.case.id: item.case.world for item in wanted})
    return [_row(item, found) for item in wanted]


def _row(item: Wanted, found: Measured) -> Row:
    case = item.case
    row = Row(
        framework=case.framework,
        method=case.method,
        workload=case.workload,
        preset=case.preset,
        precision=case.precision,
        device=case.device,
        world=case.world,
        experiment=case.experiment,
        default=item.default,
        covers=case.covers,
    )
    _add_state(row, case.id, found)
    _add_syscalls(row, case.id, found)
    failures = found.failures.get(case.id, [])
    if failures:
        _add_failure(row, failures)
        return row  # wrong bytes yield no number
    _add_saves(row, found.saves[found.saves["case"] == case.id], item.samples)
    _add_loads(row, found.loads[found.loads["case"] == case.id], item.samples)
    row.verified = len(found.verified.get(case.id, ())) >= item.processes * case.world
    if row.durable_s is None or row.load_s is None:
        row.status, row.reason = "skipped", "not measured to the end: the run was interrupted"
    return row


def _add_failure(row: Row, failures: Sequence[FailureRecord]) -> None:
    worst = min(failures, key=lambda failure: _WORST_FIRST.index(failure.status))
    row.status, row.phase, row.reason = worst.status, worst.phase, worst.reason
    if row.world > 1:
        row.reason = f"rank {worst.rank}: {worst.reason}"


def _add_state(row: Row, case: str, found: Measured) -> None:
    state = found.states.get(case)
    if state is None:
        return
    row.state_bytes, row.covered_bytes = state.state_bytes, state.covered_bytes
    row.memory_copy_s = state.memory_copy_ns / 1e9
    row.device_copy_s = state.device_copy_ns / 1e9 or None


def _add_syscalls(row: Row, case: str, found: Measured) -> None:
    calls = found.syscalls.get(case)
    if calls is None:
        return
    row.durability, row.data_durability, row.durability_reason = calls.durability, calls.data_durability, calls.reason
    if calls.durability != "unknown":
        row.writes, row.write_median_bytes = calls.writes, calls.write_median_bytes
        row.fsyncs, row.renames = calls.fsyncs, calls.renames


def _add_saves(row: Row, samples: pd.DataFrame, wanted: int) -> None:
    if samples.empty or samples["warmup"].all():
        return
    row.disturbed = int(samples["disturbed"][~samples["warmup"]].sum())
    used = usable(samples, wanted)
    row.samples, row.processes = len(used), used["process"].nunique()
    row.file_bytes, row.files = int(used["file_bytes"].median()), int(used["files"].median())
    row.peak_memory_bytes = int(used["peak_bytes"].max())
    row.backing, row.ceiling_direct = str(used["backing"].max()), bool(used["direct"].all())
    row.stall_s, row.finished_s = _median(used, "stall_s"), _median(used, "finished_s")
    row.durable_s, row.ceiling_write_s = _median(used, "durable_s"), _median(used, "ceiling_s")
    row.write_efficiency = _median(used, "efficiency")
    row.durable_samples = _samples(used, "durable_s")


def _add_loads(row: Row, samples: pd.DataFrame, wanted: int) -> None:
    if samples.empty or samples["warmup"].all():
        return
    used = usable(samples, wanted)
    row.load_samples = len(used)
    row.load_s, row.ceiling_read_s = _median(used, "load_s"), _median(used, "ceiling_s")
    row.read_efficiency = _median(used, "efficiency")
    caches = set(used["cache"])
    row.load_cache = caches.pop() if len(caches) == 1 else "mixed"


def _samples(frame: pd.DataFrame, column: str) -> Samples:
    return Samples(frame[column].to_numpy(dtype=float), frame["process"].to_numpy(dtype=int))


def _median(frame: pd.DataFrame, column: str) -> Estimate:
    return statistics.median(_samples(frame, column))


def _flat(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    values = asdict(estimate) if estimate else {"value": None, "low": None, "high": None}
    return {name: values["value"], f"{name}_low": values["low"], f"{name}_high": values["high"]}
