"""All directories that strikes leave of one recorded save, in a fixed order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.durability.contents import Step
from harness.durability.crashes import Crashes, NotSeenError, chosen_instants
from harness.durability.trees import Tree
from harness.durability.window import MissingMarkError, find_window
from harness.experiments.faults import ALL_INSTANTS
from harness.experiments.faults.damage import damages
from harness.experiments.faults.left import Left, stored
from harness.experiments.faults.recorded_save import read, read_calls
from harness.experiments.faults.records import Strike

OLDER = "step-1"
NEWER = "step-2"
_CHECKPOINT = re.compile(r"step-(\d+)")
_SINGLES_AT_MOST = 6  # names and files that are lost alone, at each instant
_NO_LIMIT = 10**9


@dataclass(frozen=True)
class State:
    """One directory. `number` counts all of a save's; `instant` is None where nobody counted.

    `left` tells more of a strike that was real. `damage_kind` is empty for what is no damage.
    """

    number: int
    strike: Strike
    instant: int | None
    in_words: str
    tree: Tree
    left: Left | None = None
    damage_kind: str = ""


class States:
    """The states of one recorded save, which its folder and the limits determine.

    `not_seen` says why no crash states can be built; empty where they can.
    """

    def __init__(self, folder: Path, case_id: str, instants: int) -> None:
        """Read a recording, and replay it once. Raises OSError where it is not there."""
        self._folder = folder
        self._singles_at_most = _NO_LIMIT if instants >= ALL_INSTANTS else _SINGLES_AT_MOST
        self.save = read(folder)
        self.not_seen = ""
        self.all_steps: list[Step] = []
        self.instants: list[int] = []
        try:
            calls = read_calls(folder)
            window = find_window(calls, case_id)
            self._crashes = Crashes(calls, window, self.save.root, self.save.before)
            self._crashes.follow(self.save.after)
        except (MissingMarkError, NotSeenError) as error:
            self.not_seen = str(error)
            return
        self.all_steps = self._crashes.steps
        self.instants = chosen_instants(self._crashes.steps, instants)

    @property
    def singles_left_out(self) -> int:
        """Return how many losses of a single name or file were not among the states so far."""
        return 0 if self.not_seen else self._crashes.singles_left_out

    def __iter__(self) -> Iterator[State]:
        """Yield every state, crashes first."""
        number = 0
        if not self.not_seen:
            for crash in self._crashes.states(frozenset(self.instants), self._singles_at_most):
                yield State(number, crash.strike, crash.instant, crash.in_words, crash.tree)
                number += 1
        save = self.save
        for damaged in damages(save.after, save.before, save.parts):
            words = damaged.in_words
            kind = damaged.kind
            yield State(number, "damage", None, words, damaged.tree, damage_kind=kind)
            number += 1
        for left, tree in stored(self._folder):
            yield State(number, left.strike, None, left.in_words, tree, left)
            number += 1


def newest_of(names: Iterable[str]) -> str | None:
    """Return the name that a script takes for the newest checkpoint; None where there is none.

    It takes the highest number, and knows nothing of the names of unfinished files.
    """
    checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)]
    return max(checkpoints, key=lambda name: int(name.removeprefix("step-")), default=None)
