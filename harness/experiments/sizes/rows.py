"""What a checkpoint's files hold, and whether the same state gives the same files: the rows of the sizes experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.analysis.frame import Measured
from harness.analysis.row import Row, Wanted, identity
from harness.experiments.sizes.records import InventoryRecord, PayloadRecord, RepeatRecord

WEIGHTS = ("weight", "buffer")
CHECKSUM = "checksum of what differs"
_PAIRS = 2  # in one process, in two
HASH_ORDER = "order of Python's hashes"  # of text: another one in every process


@dataclass(kw_only=True)
class SizesRow(Row):
    """The files of one method: sizes in bytes of the checkpoint of the trained state, and how they repeat.

    `stored` is by role, as it lies in the files; None where the format does not tell. What no entry
    claims is `metadata_bytes`. The `deflated` and `shuffled` fractions are the state's own, of
    weights and of the optimizer, fresh and trained.
    """

    state_bytes: int | None = None
    covered_bytes: int | None = None
    file_bytes: int | None = None
    fresh_file_bytes: int | None = None
    files: int | None = None
    weights_bytes: int | None = None
    optimizer_bytes: int | None = None
    other_bytes: int | None = None
    metadata_bytes: int | None = None
    device_written_bytes: int | None = None
    writes: int | None = None
    write_min_bytes: int | None = None
    write_median_bytes: int | None = None
    write_max_bytes: int | None = None
    weights_deflated_fresh: float | None = None
    weights_deflated_trained: float | None = None
    weights_shuffled_trained: float | None = None
    optimizer_deflated_fresh: float | None = None
    optimizer_deflated_trained: float | None = None
    optimizer_shuffled_trained: float | None = None
    same_in_one_process: bool | None = None
    same_in_two_processes: bool | None = None
    same_with_fixed_hashing: bool | None = None
    causes: list[str] = field(default_factory=list)
    # "file [start, stop): cause" of the first differences
    places: list[str] = field(default_factory=list)


def row(item: Wanted, found: Measured) -> SizesRow:
    """Derive the row of one case."""
    case = item.case.id
    row = SizesRow(**identity(item))
    _add_payloads(row, found.payloads.get(case, []))
    _add_syscalls(row, case, found)
    if row.fail(found.failures.get(case, [])):
        return row
    _add_inventories(row, found.inventories.get(case, []))
    repeats = found.repeats.get(case, [])
    _add_repeats(row, repeats)
    if (
        row.file_bytes is None
        or len({(record.process, record.pair) for record in repeats}) < _PAIRS * item.processes
    ):
        row.status, row.reason = "skipped", "not looked at to the end: the run was interrupted"
    return row


def _add_inventories(row: SizesRow, inventories: Sequence[InventoryRecord]) -> None:
    trained = max(inventories, key=lambda record: (record.steps, -record.process), default=None)
    if trained is None:
        return
    row.state_bytes, row.covered_bytes = trained.state_bytes, trained.covered_bytes
    row.file_bytes, row.files = trained.file_bytes, len(trained.files)
    row.fresh_file_bytes = next(
        (record.file_bytes for record in inventories if record.steps == 0), None
    )
    of_trained = [
        record.device_written_bytes for record in inventories if record.steps == trained.steps
    ]
    written = [count for count in of_trained if count is not None]
    # whatever else the machine wrote meanwhile only adds
    row.device_written_bytes = min(written, default=None)
    if not any(file.entries for file in trained.files):
        return
    stored: dict[str, int] = {}
    for file in trained.files:
        for role, count in file.stored_by_role.items():
            stored[role] = stored.get(role, 0) + count
    row.weights_bytes = sum(stored.get(role, 0) for role in WEIGHTS)
    row.optimizer_bytes = stored.get("optimizer", 0)
    row.other_bytes = sum(stored.values()) - row.weights_bytes - row.optimizer_bytes
    row.metadata_bytes = row.file_bytes - sum(stored.values())


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


def _add_syscalls(row: SizesRow, case: str, found: Measured) -> None:
    calls = found.syscalls.get(case)
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
