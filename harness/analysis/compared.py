"""Declarations of what `compare` does with a column: test it as a cost, or watch it as a fact.

A cost has samples on both sides, and the ratio of head over base is tested. A fact has no interval:
what was true, safe or small and is not any more always counts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.wire.records import CalibrationRecord

IN_CEILINGS = "ceilings"
"""The unit of times that are multiples of a raw transfer of as many bytes."""

TOLERANCE = 1.05
"""The ratio up to which a difference does not matter."""

_BYTES_PER_THOUSAND = 1  # by which files may grow or shrink
_SHARE_WITHIN = 0.1  # by which a share of strikes may grow


def grows(before: float, now: float) -> bool:
    """Return whether a share of the strikes is larger than chance makes it.

    Two runs never strike at the very same places. So a share may grow by a tenth of all, but not
    from nothing.
    """
    return now > before + _SHARE_WITHIN or (before == 0 and now > 0)


@dataclass(frozen=True)
class Worth:
    """The ratios that matter.

    Beyond `different` they are slower or faster, and within `same` they are the same.
    """

    different: float = TOLERANCE
    same: float = TOLERANCE


def usual_worth(base: pd.DataFrame, head: pd.DataFrame) -> Worth:
    """Return the ratios that matter in most columns."""
    return Worth()


@dataclass(frozen=True)
class Controls:
    """The changes of the machine's own controls between two runs, as absolute logarithms of ratios.

    `copied` is that of a copy in memory, `farther` the larger one of it and the write ceiling's.
    `base_median` is the median cost of the base, and `base_row` its row.
    """

    copied: float
    farther: float
    base_median: float
    base_row: Any


Drift = Callable[[Controls], float]
"""The logarithm of how far a cost may be off, because the machine was another one meanwhile.

Two runs are of two moments, and a copy in memory and a raw write do not take the same time in both.
The interval of a ratio knows the spread within each run only. So it is widened by the drift at both
ends. The arms of one run need none, because their processes alternate.

`tests/gate_quality.py report` measures what the rule is for: how many pairs of like runs raise a
false alarm, with the rule and without it. Two of the reference runs of PyTorch of 2026-11-23 are
such a pair, an hour apart. In the one, raw writes beside DeepFreeze's saves take 20 % longer, and
its stalls 17 %. Without the rule, these would be called slower.
"""


def as_the_copy_does(controls: Controls) -> float:
    """Return the drift of a time that the disk has no part in."""
    return controls.copied


def as_the_farther_does(controls: Controls) -> float:
    """Return the drift of a time that memory or the disk may bound, where nobody knows which."""
    return controls.farther


def beside_the_disk(controls: Controls) -> float:
    """Return the drift of a time in ceilings.

    The disk's change is in its unit. Only the share of the time that the disk does not explain
    moves as the copy does: what exceeds the ceiling, or falls short of it.
    """
    share = min(1.0, abs(1.0 - 1.0 / controls.base_median))
    return in_part(controls.copied, share)


def in_part(moved: float, share: float) -> float:
    """Return the logarithm of how much longer a time takes when that share of it moves so far."""
    return math.log1p(share * math.expm1(moved))


@dataclass(frozen=True)
class Circumstances:
    """The circumstances of one side's samples.

    `samples` are all samples of the row, with their warm-ups. `calibration` says of which requests
    the run made its ceilings; None where the run does not say.
    """

    row: Any
    samples: pd.DataFrame
    calibration: CalibrationRecord | None


@dataclass(frozen=True)
class Condition:
    """A circumstance that must be alike on both sides, because else their ratio says nothing.

    `value` returns it for one side, or None where it is unknown, which is no difference. `why` is
    given the values of base and head, and completes the sentence "… is not compared, because …".
    `advice` says what to do, for a condition that concerns whole runs. `of_now` is the value in a
    run of this version, where older versions measured otherwise.
    """

    value: Callable[[Circumstances], Hashable]
    why: Callable[[Any, Any], str]
    advice: str = ""
    of_now: Hashable = None


def every_row(row: Any) -> bool:
    """Return True: the column is tested in every row."""
    return True


@dataclass(frozen=True)
class Cost:
    """A metric: a number whose ratio head over base is tested. A ratio above 1 is worse.

    `cost` returns what each sample costs, in `unit`. `applies_to` says in which rows the column is
    tested: two columns may be one metric in two units, and a row is tested by one of them.
    `conditions` must be alike on both sides; the first one that is not gives the reason.
    `drift` and `worth` say how certain the ratio is between two runs, and from where on it matters.
    """

    name: str
    unit: str
    cost: Callable[[pd.DataFrame], pd.Series[float]]
    applies_to: Callable[[Any], bool] = every_row
    conditions: tuple[Condition, ...] = ()
    drift: Drift = as_the_farther_does
    worth: Callable[[pd.DataFrame, pd.DataFrame], Worth] = usual_worth


@dataclass(frozen=True)
class Change:
    """A difference between the facts of two rows, as a sentence."""

    sentence: str
    is_worse: bool


class Fact(ABC):
    """A value that is compared without an interval."""

    @abstractmethod
    def change(self, base: Any, head: Any) -> Change | None:
        """Return what changed from the base's value to the head's; None where nothing did."""

    def change_of_rows(self, name: str, base: Any, head: Any) -> Change | None:
        """Return what changed in the field of that name from the base's row to the head's."""
        return self.change(getattr(base, name), getattr(head, name))

    def doubt(self, base: Any, head: Any, head_row: Any) -> str:
        """Return as a sentence what is not known of the head any more; empty where all is."""
        return ""


@dataclass(frozen=True)
class Flag(Fact):
    """A fact that must not get lost. `words` completes the sentence "was … and is not any more"."""

    words: str

    def change(self, base: bool | None, head: bool | None) -> Change | None:
        """Return a loss, or a gain where it is known that the base did not have it."""
        if base and head is None:
            return Change(f"was {self.words}, and nobody knows whether it still is", is_worse=True)
        if base and not head:
            return Change(f"was {self.words} and is not any more", is_worse=True)
        if base is False and head:
            return Change(f"is {self.words} now", is_worse=False)
        return None


@dataclass(frozen=True)
class Rank(Fact):
    """A word that must not fall back in an order, whose worst word is first.

    A word outside of the order, such as "unknown", compares nothing. Where the base has a word of
    the order and the head has none, the sentence `when_unknown` says so, with the reason that the
    row's field `reason` holds.
    """

    words: str
    worst_first: tuple[str, ...]
    when_unknown: str = ""
    reason: str = ""

    def change(self, base: str, head: str) -> Change | None:
        """Return by which words the value fell back or rose."""
        if base == head or base not in self.worst_first or head not in self.worst_first:
            return None
        is_worse = self.worst_first.index(head) < self.worst_first.index(base)
        return Change(f"{self.words} was {base!r} and is {head!r}", is_worse)

    def doubt(self, base: str, head: str, head_row: Any) -> str:
        """Return that the head's place in the order is not known any more."""
        if not self.when_unknown or base not in self.worst_first or head in self.worst_first:
            return ""
        reason = getattr(head_row, self.reason) if self.reason else ""
        return f"{self.when_unknown} ({reason})" if reason else self.when_unknown


@dataclass(frozen=True)
class Fewest(Fact):
    """A count of failures that must not grow. `words` names them, such as "hung saves".

    `of` is the row's field with how many strikes there were. Then the share is compared, because
    chance decides after which of them something fails. Without it, every failure more counts.
    """

    words: str
    of: str = ""

    def change(self, base: int | None, head: int | None) -> Change | None:
        """Return that there are more failures or fewer, or that nobody counts them any more."""
        if base is None or base == head:
            return None
        if head is None:
            return Change(f"{self.words} were {base} and are not known any more", is_worse=True)
        return Change(f"{self.words} were {base} and are {head}", head > base)

    def change_of_rows(self, name: str, base: Any, head: Any) -> Change | None:
        """Return that a larger or smaller share of the strikes fails."""
        before, now = getattr(base, name), getattr(head, name)
        tried_before, tried_now = (getattr(row, self.of or name) for row in (base, head))
        is_known = before is not None and now is not None
        if not (self.of and is_known and tried_before and tried_now):
            return self.change(before, now)
        was, is_now = before / tried_before, now / tried_now
        sentence = f"{self.words} were {before} of {tried_before} and are {now} of {tried_now}"
        if grows(was, is_now):
            return Change(sentence, is_worse=True)
        return Change(sentence, is_worse=False) if grows(is_now, was) else None


@dataclass(frozen=True)
class FileBytes(Fact):
    """A number of bytes that must not grow. `words` names the files, such as "of a fresh state"."""

    words: str = ""

    def change(self, base: int | None, head: int | None) -> Change | None:
        """Return by how much the files grew or shrank, where it is more than a thousandth."""
        if not base or not head or 1000 * abs(head - base) <= _BYTES_PER_THOUSAND * base:
            return None
        files = f"files {self.words}" if self.words else "files"
        percent = f"{100 * (head / base - 1):+.2f} %"
        return Change(f"{files} had {base} bytes and have {head} ({percent})", head > base)


Compared = Cost | Fact
