"""The kills that the saves of a case are to get: before which calls, and at which moments."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.durability.crashes import thinned
from harness.wire.case import Case

_COUNTED = "kill-counted.json"
_ORDER = "kill.json"


@dataclass(frozen=True)
class Kill:
    """A kill before the change number `change` of a save, or at the moment number `moment` of some.

    The other number is 0. A moment comes `after_ns` nanoseconds after the begin of the save. A log
    of the calls predicts what the kill leaves, but for a save whose changes a log cannot show.
    `again` counts the same kills of other processes before this one.
    """

    change: int = 0
    moment: int = 0
    after_ns: int = 0
    is_predicted: bool = True
    again: int = 0

    @property
    def name(self) -> str:
        """The part of file names that tells this kill from others of the case."""
        if self.moment:
            return f"moment-{self.moment}"
        return f"{self.change}-{self.again}" if self.again else str(self.change)

    @property
    def in_words(self) -> str:
        """The kill in words."""
        if self.moment:
            return f"killed at a random moment, number {self.moment}"
        words = f"killed before change {self.change}"
        return f"{words}, process {self.again + 1} of them" if self.again else words


@dataclass(frozen=True)
class Counted:
    """The changes of an undisturbed save, which of them are renames, and the time that it took."""

    changes: int
    renames: list[int]
    save_ns: int


def chosen(counted: Counted, wanted: int, seed: str, *, is_seen: bool) -> list[Kill]:
    """Return the kills of a save: before its first and its last change, around its renames.

    Of many renames some are chosen evenly, because they are those of one array after the other.
    Chance chooses the rest among the other changes, and one of these at least. A save with few
    changes has the same kills again, in other processes, because threads may make their calls in
    another order.

    Of a save whose changes a log cannot show, some may be no calls at all. So where it makes fewer
    calls than kills are wanted, random moments follow.
    """
    count = counted.changes
    chance = random.Random(seed)
    every = range(1, count + 1)
    telling = [1, count]
    for number in counted.renames:
        telling += [number, number + 1]
    first = sorted({number for number in telling if number in every})
    others = [number for number in every if number not in first]
    chance.shuffle(others)
    room = wanted - 1 if others else wanted
    numbers = sorted([*thinned(first, room), *others][:wanted])
    kills = [Kill(change=number, is_predicted=is_seen) for number in numbers]
    if is_seen:
        return kills + _again(numbers, wanted - len(kills), chance)
    for moment in range(1, wanted - len(kills) + 1):
        after_ns = int(counted.save_ns * chance.random())
        kills.append(Kill(moment=moment, after_ns=after_ns, is_predicted=False))
    return kills


def instead(ordered: Sequence[Kill], reached: Sequence[Kill], count: int) -> list[Kill]:
    """Return so many kills before changes that others have reached.

    They take the place of kills before changes that a save did not make. `ordered` are all kills so
    far. What a log cannot show of the others, it cannot show of these either.
    """
    chance = random.Random(len(ordered))
    is_predicted = all(kill.is_predicted for kill in reached)
    kills: list[Kill] = []
    for kill in _again(sorted({kill.change for kill in reached}), count, chance):
        before = [*ordered, *kills]
        times = sum(other.change == kill.change for other in before)
        kills.append(replace(kill, again=times, is_predicted=is_predicted))
    return kills


def _again(numbers: Sequence[int], count: int, chance: random.Random) -> list[Kill]:
    """Return so many kills before changes that other kills come before too, the changes in turn."""
    if not numbers:
        return []
    turns = list(numbers)
    chance.shuffle(turns)
    kills = []
    for index in range(count):
        turn, place = divmod(index, len(turns))
        kills.append(Kill(change=turns[place], again=turn + 1))
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
