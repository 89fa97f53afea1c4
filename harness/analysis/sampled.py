"""Columns and facts of rows that sum up samples of saves or of training.

Several experiments have such rows. A column is made by a function, because a field belongs to one
class, and because every row class has its columns in an order of its own.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.analysis import text
from harness.analysis.columns import column, identity_column
from harness.analysis.compared import Rank
from harness.analysis.records import RunRecords
from harness.analysis.row import COVERAGE, Wanted
from harness.analysis.samples import SampleTable, summed_up, usable
from harness.wire.records import StateRecord, VerifiedRecord

PER_STATE = "A table has them as a multiple of the state"
"""The end of the meaning of a column of bytes that a table divides by the bytes of the state."""


class Sampled:
    """The facts of a row whose checkpoints another process loads and verifies."""

    status: str
    verified: bool
    memory_copy_s: float | None

    @property
    def is_unfinished(self) -> bool:
        """Return whether the run was interrupted before a process had loaded the checkpoint."""
        if self.status == "ok":
            return not self.verified
        return self.status == "skipped"

    @property
    def copy_s(self) -> float | None:
        """The seconds of one copy of its state in memory."""
        return self.memory_copy_s


def covers_column(cell: Any = None) -> Any:
    """Declare the column that says what a method's checkpoints hold."""
    return identity_column(
        "what comes back: weights, weights+optimizer, or full (with random generators and position "
        "in the data)",
        heading="covers",
        text=cell,
        left_aligned=True,
        compared=Rank("coverage", COVERAGE),
    )


def samples_column(samples: str) -> Any:
    """Declare the column that counts the samples, such as "saves", that the medians are of."""
    return column(
        f"how many {samples} the medians are of. In brackets, with ~, is how many of them were "
        "disturbed",
        default=0,
        heading="n",
        text=_count_text,
    )


def used_disturbed_column() -> Any:
    """Declare the column that counts the disturbed ones among the samples that count."""
    return column(
        "how many of the samples were disturbed; they count where too few others are there, or "
        "none of their process",
        default=0,
    )


def state_bytes_column() -> Any:
    """Declare the column that other columns are multiples of."""
    return column("bytes of the state in memory, over all ranks", unit="bytes")


def memory_copy_column() -> Any:
    """Declare the column of the copy in memory that a stall is held against."""
    return column("one copy of the state in memory", unit="s")


def to_host_column() -> Any:
    """Declare the column of the transfer off a GPU that a stall is held against."""
    return column(
        "as many bytes as the state has, from the GPU to pinned memory in large pieces", unit="s"
    )


def to_device_column() -> Any:
    """Declare the column of the transfer to a GPU."""
    return column("as many bytes, from pinned memory to the GPU in large pieces", unit="s")


def stall_transfers_column() -> Any:
    """Declare the column of a stall on a GPU, which is about one transfer where nothing hides."""
    return column(
        "on a GPU, the stall as a multiple of a transfer of as many bytes as the state has to "
        "pinned memory",
        heading="in transfers",
        unit="ratio",
        text=lambda row: text.share(row.stall_transfers),
        shown=lambda rows: any(row.stall_transfers is not None for row in rows),
    )


def add_state(row: Any, case: str, records: RunRecords) -> None:
    """Fill in the size of the state and the time of a copy, where a process has built it."""
    state = records.last(StateRecord, case)
    if state is not None:
        row.state_bytes = state.state_bytes
        row.memory_copy_s = records.copy_s(case, lambda each: each.memory_copy_ns)
        row.to_host_s = records.copy_s(case, lambda each: each.to_host_ns)
        row.to_device_s = records.copy_s(case, lambda each: each.to_device_ns)


def add_samples(
    row: Any, table: SampleTable, samples: pd.DataFrame, wanted: int
) -> pd.DataFrame | None:
    """Fill in how many samples there are, and every column that sums them up.

    Return the samples that count. None where all there are is warm-ups.
    """
    if samples.empty or samples["warmup"].all():
        return None
    used = usable(samples, wanted)
    row.disturbed = int(samples["disturbed"][~samples["warmup"]].sum())
    row.samples = len(used)
    row.processes = used["process"].nunique()
    row.used_disturbed = int(used["disturbed"].sum())
    summed_up(row, table, used)
    return used


def is_verified(item: Wanted, records: RunRecords) -> bool:
    """Return whether every rank of every process has verified its load."""
    verified: set[tuple[int, int]] = set()
    for record in records.of(VerifiedRecord, item.case.id):
        for rank in range(record.rank, record.rank + record.ranks):
            verified.add((record.process, rank))
    return len(verified) >= item.processes * item.case.world


def _count_text(row: Any) -> str:
    """Return how many samples count, and how many of them although they were disturbed."""
    if not row.samples:
        return text.NOTHING
    if not row.used_disturbed:
        return str(row.samples)
    return f"{row.samples} ({row.used_disturbed}{text.DISTURBED})"
