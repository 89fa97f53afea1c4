"""Rows of the faults experiment: how many struck states of a method were safe, and the worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.analysis import text
from harness.analysis.columns import column, column_of_list
from harness.analysis.compared import Fewest
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity, printable
from harness.analysis.statistics import Estimate, single_value
from harness.experiments.faults import cells
from harness.experiments.faults.records import (
    ON_DISK,
    UNHANDLED,
    WORST_FIRST,
    DisksRecord,
    ErrorsRecord,
    KilledRecord,
    KillsRecord,
    PreemptedRecord,
    RecordedRecord,
    Strike,
    StruckRecord,
    TriedRecord,
    Verdict,
)
from harness.experiments.faults.verdicts import VerdictCounts

_ON_DISK: tuple[Strike, ...] = tuple(ON_DISK.values())
STRIKES: tuple[Strike, ...] = (
    *("kill", "power loss", *_ON_DISK),
    *("error", "damage", "preemption"),
)


def _worst_column(
    strike: str, name: str, heading: str = "", shown: Callable[[Any], str] | None = None
) -> Any:
    return column(
        f"the worst verdict of any {strike}. A table tells how many states have which verdict",
        default="",
        heading=heading or strike,
        text=shown or cells.counted(name),
        left_aligned=True,
    )


def _disk_column(file_system: str) -> Any:
    strike = ON_DISK[file_system]
    text_of = cells.on_disk(file_system)
    return column(
        f"the worst verdict of any {strike}, a real one that is cut block write by block write. A "
        "table tells how many of the directories have which verdict",
        default="",
        heading=f"on {file_system}",
        text=text_of,
        shown=lambda rows: any(text_of(row) != text.NOTHING for row in rows),
        left_aligned=True,
    )


@dataclass(kw_only=True)
class FaultsRow(Row):
    """The struck states of one method. `states` are directories that differ and were loaded."""

    states: int | None = column("how many different directories were tried", heading="states")
    steps: int | None = column(
        "how many system calls of the save changed or flushed something", heading="steps"
    )
    instants: int | None = column("before how many of these calls the save was struck")
    kill: str = _worst_column("kill", "kill")
    power_loss: str = _worst_column("power loss", "power_loss")
    power_loss_on_ext4: str = _disk_column("ext4")
    power_loss_on_xfs: str = _disk_column("xfs")
    power_loss_on_btrfs: str = _disk_column("btrfs")
    error: str = _worst_column("error of a system call", "error", "error", cells.of_errors)
    damage: str = _worst_column("damage", "damage")
    preemption: str = _worst_column("SIGTERM", "preemption", "SIGTERM")
    kill_verdicts: dict[str, int] | None = column(
        "how many kills had each verdict. They are real ones where none could be built",
        compared=VerdictCounts("kills"),
    )
    power_loss_verdicts: dict[str, int] | None = column(
        "how many power losses had each verdict", compared=VerdictCounts("power losses")
    )
    power_loss_on_ext4_verdicts: dict[str, int] | None = column(
        "how many directories that power losses leave on ext4 had each verdict",
        compared=VerdictCounts("power losses on ext4"),
    )
    power_loss_on_xfs_verdicts: dict[str, int] | None = column(
        "how many directories that power losses leave on xfs had each verdict",
        compared=VerdictCounts("power losses on xfs"),
    )
    power_loss_on_btrfs_verdicts: dict[str, int] | None = column(
        "how many directories that power losses leave on btrfs had each verdict",
        compared=VerdictCounts("power losses on btrfs"),
    )
    singles_left_out: int | None = column(
        "how many power losses that take a single name or file were left out, because at each "
        "instant at most six are tried. `--states all` tries them too"
    )
    block_writes: dict[str, int] | None = column(
        "how many block writes each real file system made for the save"
    )
    losses_on_disks: dict[str, int] | None = column(
        "how many power losses were built of these writes"
    )
    not_on_disks: dict[str, str] | None = column(
        "why no power was cut on a real file system, by its name"
    )
    error_verdicts: dict[str, int] | None = column(
        "how many errors had each verdict", compared=VerdictCounts("errors")
    )
    damage_verdicts: dict[str, int] | None = column(
        "how many damages had each verdict", compared=VerdictCounts("damages")
    )
    preemption_verdicts: dict[str, int] | None = column("how many SIGTERMs had each verdict")
    handled_verdicts: dict[str, int] | None = column(
        "how many SIGTERMs that the script handles had each verdict. Without a handler, chance "
        "decides how far an asynchronous save comes",
        compared=VerdictCounts("SIGTERMs that the script handles"),
    )
    raised: int | None = column(
        "how many of the saves whose calls failed did not report success: they raised an error, "
        "hung or died"
    )
    next_fails: int | None = column(
        "how many times the save after a failed one failed too, in the same process: it raised, "
        "did not end, or reported success and its checkpoint did not come back. A table adds how "
        "many times the last one",
        heading="next save fails",
        text=cells.of_next_saves,
        shown=lambda rows: any(row.next_saves for row in rows),
        compared=Fewest("next saves that fail", of="next_saves"),
    )
    next_broken: int | None = column(
        "how many times the save after a failed one reported success, and its checkpoint did not "
        "come back whole"
    )
    next_saves: int | None = column("how many saves came after a failed one, in the same process")
    left_files: int | None = column(
        "after how many failed saves files are left behind that undisturbed saves do not leave, "
        "once the next save has ended and the method is closed. A table names processes and memory "
        "too",
        heading="left behind",
        text=cells.of_left_behind,
        shown=lambda rows: any(row.next_saves for row in rows),
        left_aligned=True,
        compared=Fewest("failed saves that leave files behind", of="next_saves"),
    )
    left_processes: int | None = column(
        "after how many failed saves processes are left behind",
        compared=Fewest("failed saves that leave processes behind", of="next_saves"),
    )
    left_memory_bytes: int | None = column(
        "by how much the process grew over all failed saves, where that is more than a checkpoint, "
        "and more than half a checkpoint for each; 0 where it is less",
        unit="bytes",
    )
    real_kills: int | None = column("how many saves were really killed")
    not_reached: int | None = column("how many more were to be killed, and ended before that")
    as_predicted: int | None = column(
        "how many real kills left exactly the files that their calls predict. A table adds how "
        "many there were, and how many were ordered where a save ended before its kill",
        heading="predicted",
        text=cells.of_real_kills,
    )
    not_as_predicted: int | None = column(
        "how many real kills left other files than their calls predict, or had no prediction",
        compared=Fewest("real kills that leave other files than predicted"),
    )
    preempted_s: Estimate | None = column(
        "the seconds from a SIGTERM while training to a checkpoint on the disk",
        heading="SIGTERM to durable",
        unit="s",
        text=cells.within_grace("preempted_s"),
    )
    preempted_in_save_s: Estimate | None = column(
        "the seconds from a SIGTERM just after `save` has returned to a checkpoint on the disk. An "
        "asynchronous save is at work then, and a synchronous one has only what it did not flush",
        heading="in a save",
        unit="s",
        text=cells.within_grace("preempted_in_save_s"),
    )
    grace_s: int | None = column(
        "how many seconds a process had from a SIGTERM to its end. Older runs have no limit, and "
        "no value",
        unit="s",
    )
    late: int | None = column(
        "after how many SIGTERMs the grace was over before a checkpoint was on the disk. A table "
        "says so in the place of the seconds",
        compared=Fewest("SIGTERMs whose grace was too short"),
    )
    not_struck: str = column(
        "which real strikes there were not, and why; empty if there were all", default=""
    )
    worst: str = column(
        "the first state with the worst verdict of a kill or a power loss, in words",
        default="",
    )
    worst_damage: str = column("the first damage with the worst verdict, in words", default="")
    not_seen: str = column(
        "why no kill or power loss could be built; empty if it could", default=""
    )
    struck: list[dict[str, Any]] = column_of_list(
        "every state: what struck, when, and the verdict. Only JSON has it", in_csv=False
    )
    # The figure needs these two. JSON has them state by state in `struck`.
    verdicts_by_instant: dict[Strike, dict[int, Verdict]] = field(default_factory=dict, repr=False)
    verdicts_by_damage: dict[str, list[Verdict]] = field(default_factory=dict, repr=False)


def rows(items: Sequence[Wanted], records: RunRecords) -> list[FaultsRow]:
    """Derive the row of every case."""
    return [_row(item, records) for item in items]


def worst_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst of some verdicts."""
    return min(verdicts, key=WORST_FIRST.index)


def _row(item: Wanted, records: RunRecords) -> FaultsRow:
    row = FaultsRow(**identity(item))
    if row.fail(records.failures(item.case.id)):
        return row
    tried = records.last(TriedRecord, item.case.id)
    if tried is None:
        row.interrupt("struck")
        return row
    # An interrupted run tries its states again. The last answer counts.
    by_number = {record.number: record for record in records.of(StruckRecord, item.case.id)}
    struck = [by_number[number] for number in sorted(by_number)]
    row.states = sum(record.again is None for record in struck)
    row.steps = tried.steps
    row.instants = tried.instants
    row.singles_left_out = tried.singles_left_out
    row.not_seen = printable(tried.not_seen)
    for strike in STRIKES:
        of_strike = [record for record in struck if record.strike == strike]
        if strike == "kill" and row.not_seen:
            of_strike = [record for record in struck if record.strike == "real kill"]
        _add_strike(row, strike, of_strike)
    handled = [it for it in struck if it.strike == "preemption" and it.in_words != UNHANDLED]
    row.handled_verdicts = dict(Counter(record.verdict for record in handled)) or None
    _add_real(row, struck, records, item.case.id)
    _add_disks(row, records.last(DisksRecord, item.case.id))
    crashes = [record for record in struck if _is_crash(record, row)]
    row.worst = _in_words(crashes) or row.not_seen
    row.worst_damage = _in_words([record for record in struck if record.strike == "damage"])
    row.struck = [_described(record) for record in struck]
    for record in struck:
        _add_to_figure(row, record)
    return row


def _add_strike(row: FaultsRow, strike: Strike, struck: Sequence[StruckRecord]) -> None:
    if not struck:
        return
    name = cells.field(strike)
    verdicts = [record.verdict for record in struck]
    setattr(row, name, worst_of(verdicts))
    setattr(row, f"{name}_verdicts", dict(Counter(verdicts)))


def _add_real(
    row: FaultsRow, struck: Sequence[StruckRecord], records: RunRecords, case: str
) -> None:
    """Add what came of saves that were struck for real."""
    failed = [record for record in struck if record.strike == "error"]
    after = [record for record in struck if record.strike == "next save"]
    if failed:
        row.raised = sum(not record.succeeded for record in failed)
        row.next_broken = sum(bool(it.succeeded) and it.verdict != "safe" for it in after)
        row.next_saves = len(after)
        row.left_files = sum(bool(it.stray_files) for it in after)
        row.left_processes = sum(bool(it.stray_processes) for it in after)
        row.left_memory_bytes = _left_memory(records, case)
        row.next_fails = row.next_broken + sum(not record.succeeded for record in after)
    _add_kills(row, records, case)
    row.not_struck = printable("; ".join(_missing_strikes(row, records, case)))
    preempted = records.last(PreemptedRecord, case)
    if preempted is not None:
        row.preempted_s = _one_time(preempted.training_ns)
        row.preempted_in_save_s = _one_time(preempted.saving_ns)
        row.grace_s = preempted.grace_s
        times = (preempted.training_ns, preempted.saving_ns)
        row.late = times.count(None)


def _one_time(nanoseconds: int | None) -> Estimate | None:
    """Return one time in seconds; None where there is none."""
    return None if nanoseconds is None else single_value(nanoseconds / 1e9)


def _left_memory(records: RunRecords, case: str) -> int | None:
    """Return by how many bytes failed saves made their process grow; 0 where it is no leak."""
    errors = records.last(ErrorsRecord, case)
    recorded = records.last(RecordedRecord, case)
    if errors is None or recorded is None:
        return None
    allowed = max(1.0, errors.repeated / 2) * recorded.file_bytes
    return errors.grew_bytes if errors.grew_bytes > allowed else 0


def _add_kills(row: FaultsRow, records: RunRecords, case: str) -> None:
    """Add how many saves were really killed, and mark a row whose calls predicted other files."""
    by_order = {
        (record.change, record.moment, record.again): record
        for record in records.of(KilledRecord, case)
    }
    killed = list(by_order.values())
    row.real_kills = len(killed) or None
    ended = records.last(KillsRecord, case)
    row.not_reached = max(0, ended.kills - len(killed)) if ended is not None else None
    predicted = [record for record in killed if record.is_predicted]
    if predicted:
        row.as_predicted = sum(not record.difference for record in predicted)
        row.not_as_predicted = len(predicted) - row.as_predicted
    for record in predicted:
        if record.difference:
            row.marks.append(
                f"a save that was killed before change {record.change} is not as its calls "
                f"predict: {printable(record.difference)}"
            )


def _missing_strikes(row: FaultsRow, records: RunRecords, case: str) -> Iterator[str]:
    """Yield which real strikes there were not, or how many kills came too late, and why."""
    errors = records.last(ErrorsRecord, case)
    if errors is not None and not row.error_verdicts:
        yield f"no call was made to fail: {errors.not_done or 'no error hit a call of its saves'}"
    kills = records.last(KillsRecord, case)
    if kills is None or (row.real_kills and not row.not_reached):
        return
    killed = f"{row.real_kills} of {kills.kills}" if row.real_kills else "no"
    if kills.not_done:
        yield f"{killed} saves were killed: {kills.not_done}"
    elif row.not_reached:
        yield f"{killed} saves were killed, because the others ended before their kill"


def _add_disks(row: FaultsRow, record: DisksRecord | None) -> None:
    """Add on which real file systems the power was cut, and why not on others."""
    if record is None:
        return
    row.block_writes = record.block_writes or None
    row.losses_on_disks = record.losses or None
    reasons = {name: printable(reason) for name, reason in record.not_done.items()}
    row.not_on_disks = reasons or None


def _is_crash(record: StruckRecord, row: FaultsRow) -> bool:
    is_real_kill = record.strike == "real kill" and bool(row.not_seen)
    return record.instant is not None or record.strike in _ON_DISK or is_real_kill


def _add_to_figure(row: FaultsRow, record: StruckRecord) -> None:
    if record.damage_kind:
        row.verdicts_by_damage.setdefault(record.damage_kind, []).append(record.verdict)
    if record.instant is None:
        return
    by_instant = row.verdicts_by_instant.setdefault(record.strike, {})
    so_far = by_instant.get(record.instant, "safe")
    by_instant[record.instant] = worst_of([so_far, record.verdict])


def _in_words(struck: Sequence[StruckRecord]) -> str:
    """Return the first state with the worst verdict; empty where all are safe."""
    if not struck:
        return ""
    worst = min(struck, key=lambda record: WORST_FIRST.index(record.verdict))
    if worst.verdict == "safe":
        return ""
    reason = f", {worst.reason}" if worst.reason else ""
    return printable(f"{worst.in_words}: {worst.verdict}{reason}")


def _described(record: StruckRecord) -> dict[str, Any]:
    return {
        "number": record.number,
        "strike": record.strike,
        "instant": record.instant,
        "in_words": printable(record.in_words),
        "verdict": record.verdict,
        "got": record.got,
        "reason": printable(record.reason),
        "again": record.again,
        "said": printable(record.said),
        "succeeded": record.succeeded,
        "stray_files": list(map(printable, record.stray_files)),
        "stray_processes": list(map(printable, record.stray_processes)),
        "damage_kind": record.damage_kind,
    }
