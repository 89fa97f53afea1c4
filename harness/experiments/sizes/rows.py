"""Rows of the sizes experiment tell the content of a checkpoint's files, and if they repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import text
from harness.analysis.columns import column, column_of_list
from harness.analysis.compared import FileBytes
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity
from harness.analysis.sampled import PER_STATE
from harness.experiments.sizes.records import InventoryRecord, PayloadRecord, RepeatRecord
from harness.wire.records import SyscallsRecord

WEIGHTS = ("weight", "buffer")
CHECKSUM = "checksum of what differs"
_PAIRS = 2  # in one process, in two
HASH_ORDER = "order of Python's hashes"  # of text: another one in every process


def _same_text(row: SizesRow) -> str:
    """Return whether saving again gives the same files: in one process, in two."""
    if row.status != "ok":
        return row.status
    words = {True: "yes", False: "no", None: text.NOTHING}
    return f"{words[row.same_in_one_process]}, {words[row.same_in_two_processes]}"


def _rest_text(row: SizesRow) -> str:
    if row.metadata_bytes is None or row.other_bytes is None:
        return text.NOTHING
    return text.size(row.metadata_bytes + row.other_bytes)


def _writes_text(row: SizesRow) -> str:
    """Return how many calls wrote the files, and their median size."""
    if row.writes is None or row.write_median_bytes is None:
        return text.NOTHING
    return f"{row.writes} of {text.size(row.write_median_bytes)}"


@dataclass(kw_only=True)
class SizesRow(Row):
    """The files of one method: sizes of the checkpoint of the trained state, and how they repeat.

    Bytes by role are as they lie in the files, and None where the format does not name them. Bytes
    that no entry claims are `metadata_bytes`. The `deflated` and `shuffled` fractions are the
    state's own, of weights and of the optimizer, fresh and trained.
    """

    state_bytes: int | None = column("bytes of the state in memory", unit="bytes")
    covered_bytes: int | None = column("bytes that the method saves of it", unit="bytes")
    file_bytes: int | None = column(
        f"bytes of the files. {PER_STATE}",
        heading="bytes",
        unit="bytes",
        per="state_bytes",
        compared=FileBytes(),
    )
    fresh_file_bytes: int | None = column(
        f"bytes of the files of a state that has not been trained. {PER_STATE}",
        heading="fresh",
        unit="bytes",
        per="state_bytes",
        compared=FileBytes("of a fresh state"),
    )
    weights_bytes: int | None = column(
        f"stored bytes of the weights and buffers. {PER_STATE}",
        heading="weights",
        unit="bytes",
        per="state_bytes",
    )
    optimizer_bytes: int | None = column(
        f"stored bytes of the optimizer. {PER_STATE}",
        heading="optimizer",
        unit="bytes",
        per="state_bytes",
    )
    other_bytes: int | None = column("stored bytes of everything else that is named", unit="bytes")
    metadata_bytes: int | None = column(
        "bytes of the files that belong to nothing named, such as headers. A table adds "
        "everything else that is named: random generators and position",
        heading="rest",
        unit="bytes",
        text=_rest_text,
    )
    files: int | None = column("how many files a checkpoint is", heading="files")
    writes: int | None = column(
        "how many system calls wrote it. A table adds their median size",
        heading="writes",
        text=_writes_text,
    )
    write_min_bytes: int | None = column("the smallest of these calls", unit="bytes")
    write_median_bytes: int | None = column("the median of these calls", unit="bytes")
    write_max_bytes: int | None = column("the largest of these calls", unit="bytes")
    device_written_bytes: int | None = column(
        "bytes that reached the block device. A table has them as a multiple of the files' bytes",
        heading="to device",
        unit="bytes",
        per="file_bytes",
    )
    weights_deflated_fresh: float | None = column(
        "the share of fresh weights that deflate leaves", unit="ratio"
    )
    weights_deflated_trained: float | None = column(
        "the share of trained weights that deflate leaves", unit="ratio"
    )
    weights_shuffled_trained: float | None = column(
        "the share of trained weights that deflate leaves after a byte shuffle", unit="ratio"
    )
    optimizer_deflated_fresh: float | None = column(
        "the share of the fresh optimizer's slots that deflate leaves", unit="ratio"
    )
    optimizer_deflated_trained: float | None = column(
        "the share of the trained optimizer's slots that deflate leaves", unit="ratio"
    )
    optimizer_shuffled_trained: float | None = column(
        "the share of these slots that deflate leaves after a byte shuffle", unit="ratio"
    )
    same_in_one_process: bool | None = column(
        "whether saving the same state again in one process gives the same files. A table adds "
        "whether two processes do",
        heading="same files",
        text=_same_text,
        left_aligned=True,
    )
    same_in_two_processes: bool | None = column("whether two processes write the same files")
    same_with_fixed_hashing: bool | None = column("the same with Python's text hashes fixed")
    causes: list[str] = column_of_list("what lies where the files differ")
    places: list[str] = column_of_list('"file [start, stop): cause" of the first differences')


def rows(items: Sequence[Wanted], records: RunRecords) -> list[SizesRow]:
    """Derive the row of every case."""
    return [_row(item, records) for item in items]


def _row(item: Wanted, records: RunRecords) -> SizesRow:
    case = item.case.id
    row = SizesRow(**identity(item))
    _add_payloads(row, records.of(PayloadRecord, case))
    _add_syscalls(row, case, records)
    if row.fail(records.failures(case)):
        return row
    _add_inventories(row, records.of(InventoryRecord, case))
    repeats = records.of(RepeatRecord, case)
    _add_repeats(row, repeats)
    if (
        row.file_bytes is None
        or len({(record.process, record.pair) for record in repeats}) < _PAIRS * item.processes
    ):
        row.interrupt("looked at")
    return row


def _add_inventories(row: SizesRow, inventories: Sequence[InventoryRecord]) -> None:
    trained = max(inventories, key=lambda record: (record.steps, -record.process), default=None)
    if trained is None:
        return
    row.state_bytes, row.covered_bytes = trained.state_bytes, trained.covered_bytes
    row.file_bytes, row.files = trained.file_bytes, len(trained.files)
    fresh = [record.file_bytes for record in inventories if record.steps == 0]
    row.fresh_file_bytes = fresh[0] if fresh else None
    row.device_written_bytes = _least_written(inventories, trained.steps)
    if any(file.entries for file in trained.files):
        _add_roles(row, trained)


def _least_written(inventories: Sequence[InventoryRecord], steps: int) -> int | None:
    """Return the fewest bytes that the device wrote for a save after so many steps.

    All else that the machine writes meanwhile adds to them.
    """
    of_steps = [record.device_written_bytes for record in inventories if record.steps == steps]
    return min((count for count in of_steps if count is not None), default=None)


def _add_roles(row: SizesRow, inventory: InventoryRecord) -> None:
    """Split the bytes of the files by the role of the leaves that they store."""
    stored: dict[str, int] = {}
    for file in inventory.files:
        for role, count in file.stored_by_role.items():
            stored[role] = stored.get(role, 0) + count
    row.weights_bytes = sum(stored.get(role, 0) for role in WEIGHTS)
    row.optimizer_bytes = stored.get("optimizer", 0)
    row.other_bytes = sum(stored.values()) - row.weights_bytes - row.optimizer_bytes
    row.metadata_bytes = inventory.file_bytes - sum(stored.values())


def _add_payloads(row: SizesRow, payloads: Sequence[PayloadRecord]) -> None:
    for record in payloads:
        for payload in record.roles:
            if payload.role not in ("weight", "optimizer") or not payload.sampled_bytes:
                continue
            name = "weights" if payload.role == "weight" else "optimizer"
            deflated, shuffled = (
                count / payload.sampled_bytes
                for count in (payload.deflated_bytes, payload.shuffled_bytes)
            )
            if record.steps == 0:
                setattr(row, f"{name}_deflated_fresh", deflated)
            else:
                setattr(row, f"{name}_deflated_trained", deflated)
                setattr(row, f"{name}_shuffled_trained", shuffled)


def _add_syscalls(row: SizesRow, case: str, records: RunRecords) -> None:
    calls = records.last(SyscallsRecord, case)
    if calls is not None and calls.durability != "unknown":
        row.writes, row.write_min_bytes = calls.writes, calls.write_min_bytes
        row.write_median_bytes, row.write_max_bytes = (
            calls.write_median_bytes,
            calls.write_max_bytes,
        )


def _add_repeats(row: SizesRow, repeats: Sequence[RepeatRecord]) -> None:
    verdicts = {(record.pair, record.hashing): record.identical for record in repeats}
    row.same_in_one_process = verdicts.get(("one process", "random"))
    row.same_in_two_processes = verdicts.get(("two processes", "random"))
    row.same_with_fixed_hashing = verdicts.get(("two processes", "fixed"))
    different = [record for record in repeats if not record.identical]
    causes = {
        cause
        for record in different
        for difference in record.differences
        for cause in difference.causes
    }
    if any(record.only_first or record.only_second for record in different):
        causes.add("file names")
    if len(causes) > 1:
        causes.discard(CHECKSUM)  # it follows from the others
    if row.same_in_two_processes is False and row.same_with_fixed_hashing:
        causes = {HASH_ORDER}  # an experiment, and so a better witness than the bytes
    row.causes = sorted(causes)
    row.places = _places(different)


def _places(repeats: Sequence[RepeatRecord]) -> list[str]:
    found: dict[str, None] = {}
    for record in repeats:
        for names in (record.only_first, record.only_second):
            found |= dict.fromkeys(
                f"{name}: only one of two checkpoints has it" for name in names[:2]
            )
        for difference in record.differences:
            start, stop = difference.ranges[0]
            more = f" and {difference.range_count - 1} more" if difference.range_count > 1 else ""
            found[f"{difference.name} [{start}, {stop}){more}: {', '.join(difference.causes)}"] = (
                None
            )
    return list(found)
