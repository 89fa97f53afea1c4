"""Records of struck saves that are made up, for the tests of what readers see of them."""

from __future__ import annotations

from typing import Any

from harness.experiments.faults.records import Strike, StruckRecord, TriedRecord, Verdict
from harness.run.plan import PlannedCase
from harness.wire.records import Record

KNOWN: dict[str, Any] = {"process": 0, "rank": 0}


def struck(strike: Strike, instant: int | None, verdict: Verdict, **changes: Any) -> dict[str, Any]:
    """Return what tells one state from others; `changes` go to its record."""
    words = f"{strike} at {instant}"
    return {"strike": strike, "instant": instant, "verdict": verdict, "in_words": words, **changes}


def damaged(kind: str, verdict: Verdict, **changes: Any) -> dict[str, Any]:
    """Return what tells one damage from others."""
    return struck("damage", None, verdict, damage_kind=kind, in_words=f"a {kind}", **changes)


def tried(
    item: PlannedCase,
    states: list[dict[str, Any]],
    *,
    steps: int = 10,
    not_seen: str = "",
    **ended: Any,
) -> list[Record]:
    """Return the records of a case whose states these are.

    `ended` goes to the record of their end.
    """
    case = item.case.id
    found: list[Record] = []
    for number, state in enumerate(states):
        values = {"got": "", "reason": "", **state}
        found.append(StruckRecord(kind="struck", case=case, number=number, **KNOWN, **values))
    end = TriedRecord(
        kind="tried",
        case=case,
        **KNOWN,
        steps=steps,
        instants=steps + 1,
        states=len(states),
        not_seen=not_seen,
        **ended,
    )
    return [*found, end]
