"""Rows of killed ranks: what each of them left, and how the other rank's save went on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from harness.analysis import text
from harness.analysis.columns import column, column_of_list
from harness.analysis.compared import Fewest
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity, printable
from harness.analysis.statistics import Estimate, single_value
from harness.experiments.faults import verdicts
from harness.experiments.faults.records import WORST_FIRST
from harness.experiments.killed_rank.records import (
    Fate,
    RankKillRecord,
    RankLeftRecord,
    RanksResumedRecord,
    RanksStruckRecord,
)

FATES: tuple[Fate, ...] = get_args(Fate)


def _counted(row: KilledRankRow) -> str:
    counts = row.killed_rank_verdicts
    return verdicts.in_words(counts) if counts else text.NOTHING


def _kills_text(row: KilledRankRow) -> str:
    if row.kills is None:
        return text.NOTHING
    return f"{row.kills} of {row.kills + row.not_reached}" if row.not_reached else f"{row.kills}"


def _fates_text(row: KilledRankRow) -> str:
    fates = row.fates or {}
    return ", ".join(f"{fate} {fates[fate]}" for fate in FATES if fates.get(fate)) or text.NOTHING


@dataclass(kw_only=True)
class KilledRankRow(Row):
    """The saves of one method in which a rank was killed."""

    kills: int | None = column(
        "in how many saves a rank was killed; '8 of 12' where 12 kills were ordered and 4 came "
        "after the end of the save",
        heading="kills",
        text=_kills_text,
    )
    changes: int | None = column(
        "how many calls of an undisturbed save change a directory", heading="changes"
    )
    killed_rank: str = column(
        "the worst verdict on what a killed rank has left, once new ranks have loaded it. A table "
        "tells how many of the kills have which verdict",
        default="",
        heading="what is left",
        text=_counted,
        left_aligned=True,
    )
    killed_rank_verdicts: dict[str, int] | None = column(
        "how many kills had each verdict", compared=verdicts.VerdictCounts("kills of a rank")
    )
    fates: dict[str, int] | None = column(
        "how many times the other rank's save finished, raised an error, hung until the time limit "
        "came, or its process died by itself",
        heading="the other rank",
        text=_fates_text,
        left_aligned=True,
    )
    hangs: int | None = column(
        "after how many kills the other rank hung",
        compared=Fewest("kills after which a rank hangs", of="kills"),
    )
    deaths: int | None = column(
        "after how many kills the other rank's process died by itself",
        compared=Fewest("kills after which a rank dies by itself", of="kills"),
    )
    raised_after: Estimate | None = column(
        "the longest time from a kill to an error of the other rank",
        heading="raised after",
        unit="s",
    )
    hung_for: Estimate | None = column(
        "the shortest time for which a rank hung after a kill. Then the time limit came, so it "
        "would have hung longer",
        heading="hung for at least",
        unit="s",
        shown=lambda rows: any(row.hung_for for row in rows),
    )
    save_s: float | None = column("the seconds that a save takes in which nobody is killed")
    not_reached: int | None = column("how many saves ended before the kill that was ordered")
    worst: str = column("the first kill with the worst verdict, in words", default="")
    first_hang: str = column("the first kill after which the other rank hung", default="")
    struck: list[dict[str, Any]] = column_of_list(
        "every kill: which call it preceded, the verdict, and the other rank. Only JSON has it",
        in_csv=False,
    )


def rows(items: Sequence[Wanted], records: RunRecords) -> list[KilledRankRow]:
    """Derive the row of every case."""
    return [_row(item, records) for item in items]


def _row(item: Wanted, records: RunRecords) -> KilledRankRow:
    row = KilledRankRow(**identity(item))
    case = item.case.id
    if row.fail(records.failures(case)):
        return row
    struck = records.last(RanksStruckRecord, case)
    if struck is None or records.last(RanksResumedRecord, case) is None:
        row.interrupt("struck")
        return row
    row.changes = struck.changes
    row.save_s = struck.save_ns / 1e9
    row.not_reached = struck.not_reached
    # An interrupted case begins anew. The last answer counts.
    kills = {record.number: record for record in records.of(RankKillRecord, case)}
    lefts = {record.number: record for record in records.of(RankLeftRecord, case)}
    both = [(kills[number], lefts[number]) for number in sorted(kills) if number in lefts]
    row.kills = len(both)
    row.struck = [_described(kill, left) for kill, left in both]
    if both:
        _add_verdicts(row, [left for _, left in both])
        _add_fates(row, [kill for kill, _ in both])
        row.worst = _worst(row.struck)
        row.first_hang = _first_hang(row.struck)
    return row


def _add_verdicts(row: KilledRankRow, lefts: Sequence[RankLeftRecord]) -> None:
    found = [left.verdict for left in lefts]
    row.killed_rank = min(found, key=WORST_FIRST.index)
    row.killed_rank_verdicts = dict(Counter(found))


def _add_fates(row: KilledRankRow, kills: Sequence[RankKillRecord]) -> None:
    row.fates = dict(Counter(kill.fate for kill in kills))
    row.hangs = row.fates.get("hung", 0)
    row.deaths = row.fates.get("died", 0)
    raised = _times(kills, "raised")
    hung = _times(kills, "hung")
    if raised:
        row.raised_after = single_value(max(raised) / 1e9)
    if hung:
        row.hung_for = single_value(min(hung) / 1e9)


def _times(kills: Sequence[RankKillRecord], fate: Fate) -> list[int]:
    """Return the nanoseconds after which saves had a fate."""
    times = [kill.after_ns for kill in kills if kill.fate == fate]
    return [time for time in times if time is not None]


def _worst(struck: Sequence[dict[str, Any]]) -> str:
    """Return the first kill with the worst verdict; empty where all are safe."""
    worst = min(struck, key=lambda kill: WORST_FIRST.index(kill["verdict"]))
    if worst["verdict"] == "safe":
        return ""
    reason = f", {worst['reason']}" if worst["reason"] else ""
    return f"{worst['in_words']}: {worst['verdict']}{reason}"


def _first_hang(struck: Sequence[dict[str, Any]]) -> str:
    """Return the first kill after which the other rank hung; empty where there is none."""
    for kill in struck:
        if kill["other_rank"] == "hung":
            return f"{kill['in_words']}: the other rank {kill['said']}"
    return ""


def _described(kill: RankKillRecord, left: RankLeftRecord) -> dict[str, Any]:
    return {
        "number": kill.number,
        "in_words": printable(kill.in_words),
        "victim": kill.victim,
        "verdict": left.verdict,
        "got": left.got,
        "reason": printable(left.reason),
        "other_rank": kill.fate,
        "after_s": None if kill.after_ns is None else kill.after_ns / 1e9,
        "said": printable(kill.said),
    }
