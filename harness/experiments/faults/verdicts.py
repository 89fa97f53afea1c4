"""The verdicts on the states that one kind of strike leaves, counted and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.analysis.compared import Change, Fact, grows
from harness.experiments.faults.records import WORST_FIRST, Verdict

Counts = Mapping[str, int]
"""The number of states with each verdict. A verdict that no state has is missing."""

_BAD = WORST_FIRST[:-1]


def in_words(counts: Counts) -> str:
    """Return every verdict that is not safe with its count, such as `lost 15, refused 1 of 24`."""
    bad = [f"{verdict} {counts[verdict]}" for verdict in _BAD if counts.get(verdict)]
    return f"{', '.join(bad)} of {sum(counts.values())}" if bad else "safe"


@dataclass(frozen=True)
class VerdictCounts(Fact):
    """The verdicts on some strikes, which must not get worse. `words` names the strikes.

    They are worse if a state is silent and none was, or if for one of the bad verdicts the states
    that have it or a worse one are more by a tenth of all, or some where there were none.
    """

    words: str

    def change(self, base: Counts | None, head: Counts | None) -> Change | None:
        """Return that the verdicts got worse or better, or that they are not known any more."""
        if not base:
            return None
        was = f"the verdicts on {self.words} were {in_words(base)!r}"
        if not head:
            return Change(f"{was} and are not known any more", is_worse=True)
        changed = f"{was} and are {in_words(head)!r}"
        if _is_worse(base, head):
            return Change(changed, is_worse=True)
        if _is_worse(head, base):
            return Change(changed, is_worse=False)
        return None


def _is_worse(before: Counts, now: Counts) -> bool:
    if now.get("silent") and not before.get("silent"):
        return True
    return any(grows(_share(before, verdict), _share(now, verdict)) for verdict in _BAD)


def _share(counts: Counts, verdict: Verdict) -> float:
    """Return the share of the states that have a verdict or a worse one."""
    at_least = WORST_FIRST[: WORST_FIRST.index(verdict) + 1]
    return sum(counts.get(each, 0) for each in at_least) / sum(counts.values())
