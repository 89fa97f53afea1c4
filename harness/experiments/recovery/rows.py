"""The rows of experiment `recovery`: what each way back costs, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from harness.analysis import text
from harness.analysis.columns import column, column_of_list, identity_column
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity, printable
from harness.analysis.statistics import Estimate
from harness.experiments.recovery import SPARE_SLEEPS, SPARE_SLEEPS_S, WAYS
from harness.experiments.recovery.records import KillRecord, RecoveredRecord, SteadyRecord
from harness.experiments.recovery.script import Script

PARTS = ("detect", "reconfigure", "restart", "restore", "recompute")
"""The parts of the way back, in the order of time of most ways."""
_PARTS_WITH_SPAWN = ("detect", "restart", "reconfigure", "restore", "recompute")
_COLD_SHARE = 0.01  # of a checkpoint's files, which the page cache may still have

_STEADY = "What a step costs without a failure"
_UNDISTURBED = ("all ranks", "fewer ranks")
_IN_WORDS = {
    "all ranks": "the bits of all ranks",
    "fewer ranks": "the bits of fewer ranks",
    "neither": "nobody's bits",
}


def _came_back_text(row: RecoveryRow) -> str:
    return f"{row.came_back} of {row.kills}" if row.kills else text.NOTHING


def _ratio_text(row: RecoveryRow) -> str:
    return text.NOTHING if row.times_faster is None else _times_sooner(row.times_faster)


def _milliseconds(name: str) -> Callable[[Any], str]:
    """Return how a table shows seconds that are mostly far below a thousandth."""

    def shown(row: RecoveryRow) -> str:
        seconds = getattr(row, name)
        return text.NOTHING if seconds is None else f"{seconds * 1e3:.2f} ms"

    return shown


def _restore_text(row: RecoveryRow) -> str:
    seconds = text.duration(row.restore)
    ratio = (row.part_ratios or {}).get("restore")
    return seconds if ratio is None else f"{seconds} ({_times_sooner(ratio)})"


def _times_sooner(ratio: float) -> str:
    return f"{two_digits(ratio)} x"


def two_digits(ratio: float) -> str:
    """Return a ratio of medians, whose kills differ too much for more than two digits."""
    # From here on, one digit behind the point would be a third digit.
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def _ranks_after_text(row: RecoveryRow) -> str:
    if not row.ranks_after:
        return text.NOTHING
    least, most = min(row.ranks_after), max(row.ranks_after)
    return str(most) if least == most else f"{most} to {least}"


def _own_state_text(row: RecoveryRow) -> str:
    if row.own_state_lost is None:
        return text.NOTHING
    return "lost" if row.own_state_lost else "kept"


def _percent(row: RecoveryRow) -> str:
    return text.NOTHING if row.spare_share is None else f"{row.spare_share:.1%}"


def _back_text(row: RecoveryRow) -> str:
    return text.duration_with_interval(row.back)


@dataclass(kw_only=True)
class RecoveryRow(Row):
    """One way back, as the median of its kills with their full range, in seconds.

    Each part ends when the last rank has come to its end, so the parts of a kill add up to `back`.
    """

    first_heading = "way back"
    first_meaning = "how training comes back after a failure"

    covers: str = identity_column("what comes back")
    way: str = column("how training comes back after a kill", default="")
    mirror: bool = column(
        "whether a neighbour keeps a copy of what a rank alone has", default=False
    )
    cold: bool = column(
        "whether the checkpoint's files were dropped from the page cache before each restart",
        default=False,
    )
    heartbeats: bool = column(
        "whether the ranks send each other heartbeats, which find one that hangs", default=False
    )
    spare_sleeps_s: float | None = column(
        "the seconds that a waiting spare sleeps between two looks for a failure"
    )
    kills: int | None = column("how many ranks were to be killed")
    came_back: int | None = column(
        "after how many kills every rank did the killed step",
        heading="came back",
        text=_came_back_text,
    )
    detect: Estimate | None = column(
        "the seconds from the kill until the last survivor has noticed it, or the launcher has "
        "ended",
        heading="detect",
        unit="s",
    )
    reconfigure: Estimate | None = column(
        "the seconds from the end of the part before until the survivors have a world again",
        heading="reconfigure",
        unit="s",
    )
    restart: Estimate | None = column(
        "the seconds from the end of the part before until all new processes have started, "
        "imported, compiled a step and opened the method",
        heading="restart",
        unit="s",
    )
    opening: Estimate | None = column(
        "the seconds of `restart` in which the slowest rank opened the method",
        heading="of it, opening",
        unit="s",
        shown=lambda rows: any(row.opening for row in rows),
    )
    cached: float | None = column(
        "the largest share of the checkpoint's files that was in the page cache before a restart "
        "loaded them",
    )
    restore: Estimate | None = column(
        "the seconds from the end of the part before until every rank has its values. In brackets "
        "is how many times sooner that is than in a restart from the default method's warm "
        "checkpoint",
        heading="restore",
        unit="s",
        text=_restore_text,
    )
    recompute: Estimate | None = column(
        "the seconds from the end of the part before until every rank has done the killed step",
        heading="recompute",
        unit="s",
    )
    back: Estimate | None = column(
        "the seconds from the kill until every rank has done the killed step: the median of the "
        "kills, and their full range",
        heading="back",
        unit="s",
        text=_back_text,
    )
    paused: Estimate | None = column(
        "the seconds from the kill until the survivors have taken a step, where they go on before "
        "the dead rank is replaced",
        heading="survivors go on",
        unit="s",
        shown=lambda rows: any(row.paused for row in rows),
    )
    times_faster: float | None = column(
        "how many times sooner it is back than a restart from the default method's warm checkpoint",
        heading="against restart",
        text=_ratio_text,
    )
    part_ratios: dict[str, float] | None = column(
        "the seconds of each part, and of `back`, in that restart over those here",
    )
    steps_recomputed: int | None = column(
        "how many steps are done again, besides the killed one; the median",
        heading="steps repeated",
    )
    ranks_after: list[int] = column_of_list(
        "how many ranks train after each kill",
        heading="ranks after",
        text=_ranks_after_text,
        in_csv=False,
    )
    same_as: str = column(
        "the undisturbed run whose bits the state has after the killed step: that of as many "
        "ranks, or the one from which the dead ranks take leave at the same step",
        heading="same bits as",
        default="",
        left_aligned=True,
    )
    own_state_lost: bool | None = column(
        "whether what the dead rank alone had is lost, such as its random generator",
        heading="own state",
        text=_own_state_text,
    )
    step_s: float | None = column(
        "the median seconds of a step without a failure",
        heading="step",
        aside=_STEADY,
        text=_milliseconds("step_s"),
    )
    agreement_s: float | None = column(
        "the median seconds in which the ranks agree on each step, at its end, and in a quorum "
        "before it where there is one, without a failure",
        heading="agreement",
        aside=_STEADY,
        text=_milliseconds("agreement_s"),
    )
    copies_s: float | None = column(
        "the median seconds in which a rank copies and mirrors what it alone has, in each step; "
        "without the wait for its neighbour",
        heading="copies",
        aside=_STEADY,
        text=_milliseconds("copies_s"),
    )
    save_s: float | None = column(
        "the median seconds in which the rank that waits longest stands still for a checkpoint, "
        "every 4 steps",
        heading="checkpoint",
        aside=_STEADY,
        text=_milliseconds("save_s"),
    )
    spare_share: float | None = column(
        "the part of one processor that a waiting spare takes",
        heading="waiting spare",
        aside=_STEADY,
        text=_percent,
    )
    clock_error_s: float | None = column(
        "by how many seconds the clocks of several nodes may have been off when they were compared"
    )
    first_loss: float | None = column("the mean loss of the first pass over the examples")
    last_loss: float | None = column("the mean loss of the last pass over the examples")
    needs: str = column(
        "what this way needs",
        default="",
        heading="needs",
        aside="What each way back needs",
        left_aligned=True,
    )
    told: str = column("the framework's own words to the survivors of the first kill", default="")
    not_back: str = column("why training did not come back; empty where it did", default="")
    dropout: float = field(default=0.0, repr=False)
    wrong_bits: int = field(default=0, repr=False)  # kills without the bits that the way promises
    unknown_bits: int = field(default=0, repr=False)  # kills whose bits could not be compared
    each_kill: list[dict[str, Any]] = column_of_list(
        "every kill: whom it struck, when, and the way back. Only JSON has it", in_csv=False
    )

    @property
    def verdict(self) -> str:
        """The row in one word."""
        if self.status != "ok":
            return self.status
        if self.came_back != self.kills:
            return "not back"
        return "wrong bits" if self.wrong_bits else "back"

    def title(self, several_frameworks: bool) -> str:
        """Return the way, and the method where it loads a checkpoint."""
        framework = f"{self.framework} " if several_frameworks else ""
        mark = " (marked)" if self.marks else ""
        return f"{framework}{self.way_in_words}{mark}"

    @property
    def way_in_words(self) -> str:
        """The way, with its method and its mirror."""
        way = WAYS[self.way]
        method = f" from {self.method}" if way.state_from == "files" else ""
        mirror = ", mirrored" if self.mirror else ""
        cache = ", cold files" if self.cold else ""
        heartbeats = ", with heartbeats" if self.heartbeats else ""
        rare = self.spare_sleeps_s is not None and self.spare_sleeps_s > Script.pause_s
        spare = f", the spare sleeps {self.spare_sleeps_s:g} s" if rare else ""
        return f"{way.in_words}{method}{mirror}{cache}{heartbeats}{spare}"

    @property
    def subject(self) -> str:
        """The way back."""
        return f"'{self.way_in_words}'"

    @property
    def parts_in_order(self) -> tuple[str, ...]:
        """The parts in the order of time.

        A process that survivors spawn has started before they are a world with it.
        """
        return _PARTS_WITH_SPAWN if WAYS[self.way].newcomer == "spawned" else PARTS

    def part(self, name: str) -> Estimate | None:
        """Return the seconds of one of the `PARTS`, or of `back`."""
        return cast("Estimate | None", getattr(self, name))


def rows(items: Sequence[Wanted], records: RunRecords) -> list[RecoveryRow]:
    """Derive the row of every case."""
    derived = [_row(item, records) for item in items]
    for row in derived:
        _compare_with_restart(row, derived)
        _check_control(row, derived)
    return derived


def _row(item: Wanted, records: RunRecords) -> RecoveryRow:
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
