"""The kills that the saves of a case are to get: before which calls, and at which moments."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.wire.case import Case

_COUNTED = "kill-counted.json"
_ORDER = "kill.json"


@dataclass(frozen=True)
class Kill:
    """A kill before the change number `change` of a save, or at the moment number `moment` of some.

    The other number is 0. A moment comes `after_ns` nanoseconds after the begin of the save. A log
    of the calls predicts what the kill leaves, but for a save whose changes a log cannot show.
    """

    change: int = 0
    moment: int = 0
    after_ns: int = 0
    is_predicted: bool = True

    @property
    def name(self) -> str:
        """The part of file names that tells this kill from others of the case."""
        return f"moment-{self.moment}" if self.moment else str(self.change)

    @property
    def in_words(self) -> str:
        """The kill in words."""
        if self.moment:
            return f"killed at a random moment, number {self.moment}"
        return f"killed before change {self.change}"


@dataclass(frozen=True)
class Counted:
    """The changes of an undisturbed save, which of them are renames, and the time that it took."""

    changes: int
    renames: list[int]
    save_ns: int


def chosen(counted: Counted, at_most: int, seed: str, *, is_seen: bool) -> list[Kill]:
    """Return the kills of a save: before its first and its last change, around every rename.

    Chance chooses the rest among the other changes. Of a save whose changes a log cannot show, some
    may be no calls at all. So where it makes fewer calls than kills are wanted, random moments
    follow.
    """
    count = counted.changes
    chance = random.Random(seed)
    first = [1, count]
    for number in counted.renames:
        first += [number, number + 1]
    others = [number for number in range(1, count + 1) if number not in first]
    chance.shuffle(others)
    within = [number for number in dict.fromkeys(first + others) if 1 <= number <= count]
    numbers = sorted(within[:at_most])
    kills = [Kill(change=number, is_predicted=is_seen) for number in numbers]
    if is_seen:
        return kills
    for moment in range(1, at_most - len(kills) + 1):
        after_ns = int(counted.save_ns * chance.random())
        kills.append(Kill(moment=moment, after_ns=after_ns, is_predicted=False))
    return kills


def log_name(kill: Kill) -> str:
    """Return the file in a recording's folder with the calls of a save that was killed."""
    return f"kill-{kill.name}.log"


def folder_name(case: Case, kill: Kill) -> str:
    """Return the name of the folder in which a save is killed."""
    return f"{case.id}-{kill.name}"


def write_counted(recorded: Path, counted: Counted) -> None:
    """Store in a recording's folder what an undisturbed save of its case has shown."""
    (recorded / _COUNTED).write_text(json.dumps(asdict(counted)))


def read_counted(recorded: Path) -> Counted | None:
    """Return what `write_counted` stored; None where it stored nothing."""
    file = recorded / _COUNTED
    return Counted(**json.loads(file.read_text())) if file.exists() else None


def write_order(recorded: Path, kills: list[Kill]) -> None:
    """Store the kills of a case in its recording's folder."""
    (recorded / _ORDER).write_text(json.dumps([asdict(kill) for kill in kills]))


def read_order(recorded: Path) -> list[Kill] | None:
    """Return what `write_order` stored; None where nothing is ordered yet."""
    file = recorded / _ORDER
    if not file.exists():
        return None
    return [Kill(**values) for values in json.loads(file.read_text())]
