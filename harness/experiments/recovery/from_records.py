"""From the records of a run to the rows of experiment `recovery`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.analysis import text
from harness.analysis.records import RunRecords
from harness.analysis.row import Wanted, identity, printable
from harness.analysis.statistics import Estimate
from harness.experiments.recovery import SPARE_SLEEPS, SPARE_SLEEPS_S, WAYS
from harness.experiments.recovery.records import KillRecord, RecoveredRecord, SteadyRecord
from harness.experiments.recovery.rows import PARTS, RecoveryRow

_COLD_SHARE = 0.01  # of a checkpoint's files, which the page cache may still have
_UNDISTURBED = ("all ranks", "fewer ranks")
_IN_WORDS = {
    "all ranks": "the bits of all ranks",
    "fewer ranks": "the bits of fewer ranks",
    "neither": "nobody's bits",
}


def row_of(item: Wanted, records: RunRecords) -> RecoveryRow:
    """Return the row of a case, before it is compared with the others of its run."""
    row = RecoveryRow(**identity(item))
    row.dropout = item.case.dropout
    row.way = item.case.settings["way"]
    row.mirror = item.case.settings.get("mirror") == "yes"
    row.cold = item.case.settings.get("cache") == "cold"
    row.heartbeats = item.case.settings.get("heartbeats") == "yes"
    if WAYS[row.way].newcomer == "waiting":
        row.spare_sleeps_s = SPARE_SLEEPS_S[item.case.settings.get("spare", SPARE_SLEEPS)]
    row.needs = _needs(row)
    if row.fail(records.failures(item.case.id)):
        return row
    if records.last(RecoveredRecord, item.case.id) is None:
        row.interrupt()
        return row
    # An interrupted run kills again. The last answer counts.
    by_number = {record.number: record for record in records.of(KillRecord, item.case.id)}
    kills = [by_number[number] for number in sorted(by_number)]
    _add_kills(row, kills)
    steady = records.last(SteadyRecord, item.case.id)
    if steady is not None:
        _add_steady(row, steady)
    return row


def compare(rows: Sequence[RecoveryRow]) -> None:
    """Hold each row of a run against the restart and the control of the same training."""
    for row in rows:
        _compare_with_restart(row, rows)
        _check_control(row, rows)


def _needs(row: RecoveryRow) -> str:
    """Return what the way needs, and what the settings of the row need besides."""
    besides = ["memory on a neighbour"] if row.mirror else []
    besides += ["heartbeats of MPI"] if row.heartbeats else []
    return "; ".join([WAYS[row.way].needs, *besides])


def _add_kills(row: RecoveryRow, kills: Sequence[KillRecord]) -> None:
    came_back = [kill for kill in kills if kill.back_ns is not None]
    row.kills = len(kills)
    row.came_back = len(came_back)
    for part in (*PARTS, "back", "paused"):
        setattr(row, part, _range([getattr(kill, f"{part}_ns") for kill in came_back]))
    row.opening = _range([kill.open_ns for kill in came_back])
    row.cached = max((kill.cached for kill in came_back if kill.cached is not None), default=None)
    _check_cold(row)
    row.ranks_after = [kill.ranks_after for kill in came_back]
    row.same_as = _common([kill.same_as for kill in came_back])
    row.each_kill = [_described(kill) for kill in kills]
    _check_bits(row, came_back)
    row.told = printable(next((kill.told for kill in kills if kill.told), ""))
    row.not_back = printable(next((kill.reason for kill in kills if kill.reason), ""))
    if came_back:
        row.steps_recomputed = int(np.median([kill.steps_recomputed for kill in came_back]))
        row.own_state_lost = any(kill.own_state_lost for kill in came_back)


def _check_cold(row: RecoveryRow) -> None:
    """Mark a row whose files were to be cold, and were in the page cache nevertheless."""
    if row.cold and (row.cached or 0) > _COLD_SHARE:
        row.marks.append(
            f"{row.cached:.0%} of a checkpoint's files were still in the page cache, so its "
            "restore is not cold"
        )


def _check_bits(row: RecoveryRow, came_back: Sequence[KillRecord]) -> None:
    """Mark a row where a kill left other bits than the way promises."""
    promised = WAYS[row.way].promised_bits(row.mirror)
    known = [kill.same_as for kill in came_back if kill.same_as != "unknown"]
    wrong = [bits for bits in known if bits not in promised]
    row.wrong_bits = len(wrong)
    if wrong:
        found = text.listed([_IN_WORDS[bits] for bits in wrong])
        allowed = " or ".join(_IN_WORDS[bits] for bits in promised)
        row.marks.append(
            f"{len(wrong)} of {len(came_back)} kills left {found}, and '{row.way_in_words}' must "
            f"leave {allowed}"
        )
    row.unknown_bits = len(came_back) - len(known)
    if row.unknown_bits:
        row.marks.append(
            f"the bits of {row.unknown_bits} of {len(came_back)} kills could not be compared, "
            "because the undisturbed run broke"
        )


def _add_steady(row: RecoveryRow, steady: SteadyRecord) -> None:
    row.step_s = steady.step_ns / 1e9
    survives = not WAYS[row.way].restarts
    row.agreement_s = steady.agreement_ns / 1e9 if survives else None
    goes_back = survives and WAYS[row.way].state_from == "peers"
    row.copies_s = steady.copies_ns / 1e9 if goes_back else None
    row.save_s = steady.save_ns / 1e9 or None
    row.spare_share = steady.spare_share if WAYS[row.way].newcomer else None
    row.clock_error_s = steady.clock_error_ns / 1e9 or None
    if steady.loss:
        _add_loss(row, steady)


def _add_loss(row: RecoveryRow, steady: SteadyRecord) -> None:
    """Add the loss, and mark a row whose loss did not fall.

    A network that learns nothing has the same bits whatever happens to its gradients.
    """
    steps = steady.epoch_steps or 1
    row.first_loss = float(np.mean(steady.loss[:steps]))
    row.last_loss = float(np.mean(steady.loss[-steps:]))
    # In runs of older versions, each step had other examples, whose losses cannot be compared.
    if steady.epoch_steps and row.last_loss >= row.first_loss:
        row.marks.append(
            f"the loss did not fall (from {row.first_loss:.3g} to {row.last_loss:.3g} over the "
            "same examples), so its bits prove nothing"
        )


def _check_control(row: RecoveryRow, rows: Sequence[RecoveryRow]) -> None:
    """Mark a row with the bits of an undisturbed run, where the control has such bits too.

    The control drops the batches of the dead, so its bits must differ.
    """
    if WAYS[row.way].drops or not _known_bits(row) & {*_UNDISTURBED}:
        return
    controls = [
        other
        for other in rows
        if WAYS[other.way].drops and _known_bits(other) and _training(other) == _training(row)
    ]
    if not controls:
        row.remarks.append(
            "no control that drops batches came back in this run, so equal bits prove little"
        )
    for control in controls:
        equal = _known_bits(control) - {"neither"}
        if equal:
            found = text.listed([f"'{bits}'" for bits in sorted(equal)])
            row.marks.append(
                f"the control that drops batches has the bits of {found}, so equal bits prove "
                "nothing"
            )


def _known_bits(row: RecoveryRow) -> set[str]:
    """Return whose bits the kills of a row left, where an undisturbed run can say it."""
    came_back = [kill for kill in row.each_kill if kill["back_s"] is not None]
    return {kill["same_as"] for kill in came_back} - {"unknown"}


def _range(durations_ns: Sequence[int | None]) -> Estimate | None:
    """Return the median with the full range; None where a kill lacks the part.

    The range of six values covers the median of their distribution 97 times of 100, because that
    fails only where all of them are on one side of it: 1 - 2 / 2^6. The range of fewer values,
    where training did not come back after each kill, covers it less often: of four, 87 times.
    """
    known = [duration / 1e9 for duration in durations_ns if duration is not None]
    if not known or len(known) < len(durations_ns):
        return None
    single = len(known) == 1
    return Estimate(float(np.median(known)), min(known), max(known), single=single)


def _common(values: Sequence[str]) -> str:
    """Return the value that all kills share, else how often each of them came."""
    different = list(dict.fromkeys(values))
    if len(different) <= 1:
        return different[0] if different else ""
    return ", ".join(f"{value} {_times(values.count(value))}" for value in different)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _compare_with_restart(row: RecoveryRow, rows: Sequence[RecoveryRow]) -> None:
    """Add the ratios to the restart from the default method's checkpoint of the same training."""
    for other in rows:
        is_baseline = other.way == "restart" and other.default and not other.cold
        if is_baseline and _training(other) == _training(row):
            ratios = _ratios(row, other)
            row.times_faster = ratios.get("back")
            row.part_ratios = None if other is row else ratios or None
            return


def _ratios(row: RecoveryRow, restart: RecoveryRow) -> dict[str, float]:
    """Return how many times sooner each part is than in a restart."""
    ratios = {}
    for name in (*PARTS, "back"):
        here, there = row.part(name), restart.part(name)
        if here and there and here.value > 0:
            ratios[name] = there.value / here.value
    return ratios


def _training(row: RecoveryRow) -> tuple[object, ...]:
    state = (row.workload, row.preset, row.precision, row.dropout, row.scale)
    return (row.framework, *state, row.device, row.world, row.arm)


def _seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e9


def _described(kill: KillRecord) -> dict[str, Any]:
    parts = {f"{part}_s": _seconds(getattr(kill, f"{part}_ns")) for part in PARTS}
    return {
        "number": kill.number,
        "slot": kill.slot,
        "step": kill.step,
        "instant": kill.instant,
        "ranks_after": kill.ranks_after,
        **parts,
        "back_s": _seconds(kill.back_ns),
        "steps_recomputed": kill.steps_recomputed,
        "same_as": kill.same_as,
        "reason": printable(kill.reason),
    }
