"""Marks of cost rows whose numbers can hardly be true, or whose saves are not all alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pandas as pd

from harness.analysis.records import RunRecords
from harness.analysis.row import Wanted
from harness.analysis.text import size
from harness.experiments.cost.records import OpenedRecord, SaveRecord
from harness.wire.records import CalibrationRecord, Ceilings, LoadRecord

# A checkpoint whose requests happen to suit the disk better may be a little faster than the
# fastest raw transfer. It is not half as fast again.
_FASTER_THAN_RAW = 1.5
# The files of one case's saves may differ by logs and by how well they compress.
_TOTALS_DIFFER_SHARE = 0.02
_TOTALS_DIFFER_BYTES = 64 << 10
_READ_WHILE_OPENING = 0.5  # of the checkpoint's bytes
# Fewer bytes are a settings file or the kernel's own, and no part of a load.
_READ_AT_LEAST_BYTES = 64 << 10


@dataclass(frozen=True)
class FastestRaw:
    """The rates of the fastest raw transfers of a run, in bytes per second; 0 without any."""

    write: float
    read: float

    @classmethod
    def of(cls, records: RunRecords) -> Self:
        """Return the rates among all ceilings of a run and the sweep before them."""
        beside_saves = [record.ceilings for record in records.all(SaveRecord)]
        beside_loads = [record.ceilings for record in records.all(LoadRecord)]
        return cls(
            write=_fastest(beside_saves, "write", records),
            read=_fastest(beside_loads, "read", records),
        )


def marks_of_saves(item: Wanted, saves: pd.DataFrame, fastest: FastestRaw) -> Iterator[str]:
    """Yield what is doubtful in the saves of a case."""
    if saves.empty:
        return
    bytes_per_s = saves["file_bytes"] / saves["durable_s"]
    yield from _too_fast(bytes_per_s[_is_comparable(saves)], fastest.write, "a save wrote", "write")
    least, most = saves["file_bytes"].min(), saves["file_bytes"].max()
    allowed_bytes = max(_TOTALS_DIFFER_SHARE * most, _TOTALS_DIFFER_BYTES)
    if most - least > allowed_bytes and item.size_varies is False:
        yield (
            f"its saves stored from {size(least)} to {size(most)} of a state that does not change "
            "its size, so some may lack a part"
        )


def marks_of_loads(
    loads: pd.DataFrame, opened: Sequence[OpenedRecord], fastest: FastestRaw
) -> Iterator[str]:
    """Yield what is doubtful in the loads of a case, whose methods were `opened` to save."""
    if loads.empty:
        return
    bytes_per_s = loads["file_bytes"] / loads["load_s"]
    is_cold = loads["load_cache"] == "cold"
    read = bytes_per_s[_is_comparable(loads) & is_cold]
    yield from _too_fast(read, fastest.read, "a cold load read", "read")
    # Only the first opening of a process imports modules, so the median leaves that out.
    to_load_bytes = loads["open_read_bytes"].median()
    to_save_bytes = max((record.read_bytes for record in opened), default=0)
    share_bytes = _READ_WHILE_OPENING * loads["file_bytes"].median()
    if to_load_bytes - to_save_bytes > max(share_bytes, _READ_AT_LEAST_BYTES):
        yield (
            f"opening it to load reads {size(to_load_bytes)} and to save {size(to_save_bytes)}, so "
            "a part of the load may be outside of its time"
        )


def _is_comparable(samples: pd.DataFrame) -> pd.Series[bool]:
    """Return which samples a raw transfer says something about.

    A raw transfer through the page cache says nothing about a disk.
    """
    return ~samples["disturbed"] & ~samples["warmup"] & samples["direct"]


def _fastest(ceilings: Iterable[Ceilings], operation: str, records: RunRecords) -> float:
    rates = [each.bytes / min(each.before_ns, each.after_ns) * 1e9 for each in ceilings]
    for calibration in records.all(CalibrationRecord):
        of_operation = [point for point in calibration.points if point.operation == operation]
        rates += [point.bytes_per_s for point in of_operation]
    return max(rates, default=0.0)


def _too_fast(
    bytes_per_s: pd.Series[float], fastest: float, did: str, operation: str
) -> Iterator[str]:
    if bytes_per_s.empty or not fastest or bytes_per_s.max() <= _FASTER_THAN_RAW * fastest:
        return
    times = bytes_per_s.max() / fastest
    yield (
        f"{did} its bytes {times:.1f} times as fast as the fastest raw {operation} of this run, "
        "so they can hardly have gone through the disk"
    )
