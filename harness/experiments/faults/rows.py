"""Rows of the faults experiment: how many struck states of a method were safe, and the worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.analysis import text
from harness.analysis.columns import column, column_of_list
from harness.analysis.compared import Rank
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity, printable
from harness.experiments.faults.records import (
    WORST_FIRST,
    Strike,
    StruckRecord,
    TriedRecord,
    Verdict,
)

STRIKES: tuple[Strike, ...] = ("kill", "power loss", "damage")


def _counted(name: str) -> Callable[[Any], str]:
    """Return how a table shows the verdicts of one kind of strike: worst first, with counts."""

    def shown(row: FaultsRow) -> str:
        counts: dict[str, int] | None = getattr(row, f"{name}_verdicts")
        if not counts:
            return text.NOTHING
        return ", ".join(f"{counts[word]} {word}" for word in WORST_FIRST if counts.get(word))

    return shown


def _worst_column(strike: str, name: str) -> Any:
    return column(
        f"the worst verdict of any {strike}. A table counts the states by verdict",
        default="",
        heading=strike,
        text=_counted(name),
        left_aligned=True,
        compared=Rank(f"after a {strike}, the worst", WORST_FIRST),
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
    damage: str = _worst_column("damage", "damage")
    kill_verdicts: dict[str, int] | None = column("how many kills had each verdict")
    power_loss_verdicts: dict[str, int] | None = column("how many power losses had each verdict")
    damage_verdicts: dict[str, int] | None = column("how many damages had each verdict")
    worst: str = column(
        "the first state with the worst verdict of a kill or a power loss, in words",
        default="",
    )
    worst_damage: str = column("the first damage with the worst verdict, in words", default="")
    not_seen: str = column(
        "why no kill or power loss could be built; empty if it could", default=""
    )
    struck: list[dict[str, Any]] = column_of_list("every state: what struck, when, and the verdict")
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
    row.not_seen = printable(tried.not_seen)
    for strike in STRIKES:
        _add_strike(row, strike, [record for record in struck if record.strike == strike])
    crashes = [record for record in struck if record.strike != "damage"]
    row.worst = _in_words(crashes) or row.not_seen
    row.worst_damage = _in_words([record for record in struck if record.strike == "damage"])
    row.struck = [_described(record) for record in struck]
    for record in struck:
        _add_to_figure(row, record)
    return row


def _add_strike(row: FaultsRow, strike: Strike, struck: Sequence[StruckRecord]) -> None:
    if not struck:
        return
    name = strike.replace(" ", "_")
    verdicts = [record.verdict for record in struck]
    setattr(row, name, worst_of(verdicts))
    setattr(row, f"{name}_verdicts", dict(Counter(verdicts)))


def _add_to_figure(row: FaultsRow, record: StruckRecord) -> None:
    if record.instant is None:
        row.verdicts_by_damage.setdefault(record.damage_kind, []).append(record.verdict)
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
        "damage_kind": record.damage_kind,
    }
