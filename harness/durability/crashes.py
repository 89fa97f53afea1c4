"""Builds the directories that a kill or a power loss leaves, at every instant of a window."""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from harness.durability.blind_spots import blind_spot
from harness.durability.calls import Call, UnreadableError, escaped
from harness.durability.contents import OPENS, ContentReplay, Step
from harness.durability.payload import WRITES, shown
from harness.durability.trees import File, Node, Tree, difference
from harness.durability.volume import NOTHING, Loss
from harness.durability.window import Window, begin_of

Strike = Literal["kill", "power loss"]
T = TypeVar("T")

_ANY_DESCRIPTOR = 1_000_000  # no process has so many
_PAGE_BYTES = 4096

_LOST = {
    "cut": "all that was not flushed is lost",
    "zeros": "all that was not flushed is lost, and files keep their new length with zeros",
}
_BYTES_LOST = {
    "cut": "all bytes that were not flushed are lost, and all names are there",
    "zeros": "all bytes that were not flushed are zeros, and all names are there",
}


class NotSeenError(Exception):
    """The log does not show every change of the window, so no state can be built from it."""


@dataclass(frozen=True)
class CrashState:
    """The directory that one strike at one instant leaves. `instant` counts the steps before it."""

    strike: Strike
    instant: int
    in_words: str
    tree: Tree


class Crashes:
    """The crash states of one recorded save, or of another window of a log.

    The directory `root` held `before` when the window began, all of it safe.
    """

    def __init__(self, calls: Sequence[Call], window: Window, root: Path, before: Tree) -> None:
        """Take the calls of a log, and the part of them in which strikes fall."""
        self._calls = calls
        self._window = window
        self._root = root
        self._before = before
        self.steps: list[Step] = []
        self.after: Tree = {}
        self.singles_left_out = 0

    def follow(self, real_after: Tree) -> None:
        """Replay the whole window, and prove that it leaves the files that were really there.

        Raises NotSeenError where it does not, or where the log has a gap.
        """
        doubt = blind_spot(self._calls, self._window)
        if doubt is not None:
            raise NotSeenError(doubt)
        replay = self._replay_at_begin()
        self.steps = list(self._steps(replay))
        self.after = replay.volume.tree()
        differs = difference(real_after, self.after)
        if differs is not None:
            raise NotSeenError(f"a replay of the log does not give the real files: {differs}")

    def states(self, instants: Collection[int], singles: int) -> Iterator[CrashState]:
        """Yield the states at the chosen instants, kills and power losses.

        An instant is the number of steps that are done. At each, at most `singles` power losses
        take one name or one file alone. `singles_left_out` counts the others so far.
        """
        self.singles_left_out = 0
        replay = self._replay_at_begin()
        if 0 in instants:
            yield from self._at_instant(replay, 0, singles)
        done = 0
        for call in self._between(self._window.begin, self._window.finished):
            if done in instants:
                yield from _within(replay, call, done)
            if self._applied(replay, call) is None:
                continue
            done += 1
            if done in instants:
                yield from self._at_instant(replay, done, singles)

    def when(self, instant: int) -> str:
        """Return an instant in words."""
        if not self.steps:
            return "during the save"
        if instant == 0:
            return f"before {self.steps[0].in_words}"
        if instant == len(self.steps):
            return f"after {self.steps[-1].in_words}"
        done = self.steps[instant - 1].in_words
        return f"between {done} and {self.steps[instant].in_words}"

    def _at_instant(
        self, replay: ContentReplay, instant: int, singles: int
    ) -> Iterator[CrashState]:
        volume = replay.volume
        when = self.when(instant)
        yield CrashState("kill", instant, f"killed {when}", volume.tree())
        losses: list[tuple[str, Loss]] = []
        single = volume.losses()
        if single:
            losses.append((_LOST["cut"], volume.everything("cut")))
        everything = volume.everything("zeros")
        if everything.files:
            losses.append((_LOST["zeros"], everything))
        if everything.files and everything.names:
            # Some file systems store a rename before the bytes of the renamed file.
            losses.append((_BYTES_LOST["cut"], volume.all_bytes("cut")))
            losses.append((_BYTES_LOST["zeros"], volume.all_bytes("zeros")))
        # With only one thing to lose, losing it alone is losing everything.
        if len({(loss.names, loss.files) for _, loss in single}) > 1:
            chosen = _of_both_kinds(single, singles)
            self.singles_left_out += len(single) - len(chosen)
            losses += chosen
        losses.append(("nothing is lost", NOTHING))
        for words, loss in losses:
            in_words = f"power lost {when}: {words}"
            yield CrashState("power loss", instant, in_words, volume.tree(loss))

    def _replay_at_begin(self) -> ContentReplay:
        """Return a replay of all calls before the window, with the files that were there then."""
        replay = ContentReplay(self._root)
        for call in self._between(-1, self._window.begin):
            try:
                replay.apply(call)
            except UnreadableError:
                # The files that were there when the window began are known.
                continue
        replay.volume.adopt(self._before)
        return replay

    def _steps(self, replay: ContentReplay) -> Iterator[Step]:
        """Apply the calls of the window, and yield each that did something below the root."""
        for call in self._between(self._window.begin, self._window.finished):
            step = self._applied(replay, call)
            if step is not None:
                yield step

    def _applied(self, replay: ContentReplay, call: Call) -> Step | None:
        """Apply a call, and return what it did below the root, if anything.

        Raises NotSeenError where the log does not tell enough.
        """
        try:
            return replay.apply(call)
        except UnreadableError as error:
            line = call.start + 1
            raise NotSeenError(f"line {line} of the log does not tell enough: {error}") from None

    def _between(self, begin: int, end: int) -> list[Call]:
        return [call for call in self._calls if begin < call.start < end]


def _within(replay: ContentReplay, call: Call, instant: int) -> Iterator[CrashState]:
    """Yield the directory after a kill in the middle of a large write.

    The kernel looks for a fatal signal after each page or few that it has copied. So a killed write
    can leave its first pages alone.
    """
    if call.name not in WRITES or not call.has_returned:
        return
    half_bytes = call.value // 2 // _PAGE_BYTES * _PAGE_BYTES
    if half_bytes <= 0:
        return
    halved = copy.deepcopy(replay)
    try:
        step = halved.apply(replace(call, result=str(half_bytes)))
    except UnreadableError:
        # The whole call cannot be read either, and says so.
        return
    if step is not None:
        words = f"killed in the middle of {step.in_words}"
        yield CrashState("kill", instant, words, halved.volume.tree())


def tree_when_killed(
    calls: Sequence[Call], case_id: str, root: Path, before: Tree, real: Tree
) -> Tree:
    """Return the directory that a killed save may have left, by the log of its calls.

    Calls of other threads that never returned may have taken effect or not, so there may be several
    such directories. This is the one that is nearest to `real`. Raises MissingMarkError where the
    save had not begun, and NotSeenError where the log does not tell enough.
    """
    begin = begin_of(calls, case_id)
    of_save = [call for call in calls if call.start > begin]
    returned = [call for call in of_save if call.has_returned]
    unfinished = [call for call in of_save if not call.has_returned and call.is_readable]
    taken: list[Call] = []
    nearest = _tree_after(root, before, returned, taken)
    distance = _distance(nearest, real)
    is_nearer = True
    # Where a call counts may depend on another one, such as a rename of its directory.
    while is_nearer:
        is_nearer = False
        for call in unfinished:
            if call in taken:
                continue
            # A descriptor has the name that its file had when the call began.
            in_order = sorted([*taken, call], key=lambda each: each.start)
            tree = _tree_after(root, before, returned, in_order)
            if _distance(tree, real) < distance:
                taken.append(call)
                nearest = tree
                distance = _distance(tree, real)
                is_nearer = True
    return nearest


def _distance(first: Tree, second: Tree) -> int:
    """Return in how many bytes two directories differ. A name counts as many as its file has."""
    return sum(_apart(first.get(name), second.get(name)) for name in {*first, *second})


def _apart(first: Node | None, second: Node | None) -> int:
    if first == second:
        return 0
    if isinstance(first, File) and isinstance(second, File):
        differing: int = sum(map(operator.ne, first.data, second.data))
        return differing + abs(len(first.data) - len(second.data))
    return _weight(first) + _weight(second)


def _weight(node: Node | None) -> int:
    if isinstance(node, File):
        return 1 + len(node.data)
    return 0 if node is None else 1


def _tree_after(root: Path, before: Tree, returned: Sequence[Call], taken: Sequence[Call]) -> Tree:
    """Return the directory after calls that returned, and others that only took effect."""
    replay = ContentReplay(root)
    replay.volume.adopt(before)
    try:
        for call in returned:
            replay.apply(call)
        for call in taken:
            replay.apply(_as_if_returned(call, replay))
    except UnreadableError as error:
        raise NotSeenError(f"the log does not tell enough: {error}") from None
    return replay.volume.tree()


def _of_both_kinds(single: Sequence[tuple[str, Loss]], at_most: int) -> list[tuple[str, Loss]]:
    """Return at most so many losses of one thing, half of them names and half of them files.

    A kind that has fewer leaves its room to the other one.
    """
    names = [each for each in single if each[1].names]
    files = [each for each in single if each[1].files]
    half = at_most // 2
    files_at_most = max(half, at_most - len(names))
    chosen_files = thinned(files, files_at_most)
    return thinned(names, at_most - len(chosen_files)) + chosen_files


def _as_if_returned(call: Call, replay: ContentReplay) -> Call:
    """Return an unfinished call as it would stand in the log if it had succeeded."""
    result = "0"
    if call.name in WRITES:
        result = str(len(shown(call)))
    elif call.name in OPENS:
        result = f"{_ANY_DESCRIPTOR}<{escaped(replay.path_of(call))}>"
    return replace(call, result=result, end=call.start)


def chosen_instants(steps: Sequence[Step], at_most: int) -> list[int]:
    """Return the instants to try: all of them, or around every step that is no plain write first.

    What room is left goes to instants between plain writes, evenly.
    """
    every = range(len(steps) + 1)
    if len(every) <= at_most:
        return list(every)
    telling = {0, len(steps)}
    for index, step in enumerate(steps):
        if not step.is_plain:
            telling |= {index, index + 1}
    if len(telling) >= at_most:
        return thinned(sorted(telling), at_most)
    others = [instant for instant in every if instant not in telling]
    return sorted(telling | set(thinned(others, at_most - len(telling))))


def thinned(items: Sequence[T], at_most: int) -> list[T]:
    """Return at most so many of the items, evenly spread, with the first and the last."""
    if len(items) <= at_most:
        return list(items)
    if at_most <= 1:
        return list(items[:at_most])
    last = len(items) - 1
    return [items[round(index * last / (at_most - 1))] for index in range(at_most)]
