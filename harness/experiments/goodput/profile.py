"""The costs that the first kills of a case tell: of steps, of checkpoints, and of ways back."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.experiments.goodput.lives import Life, Save


@dataclass(frozen=True)
class WayBack:
    """The seconds that one kill cost until the state was restored."""

    detect_s: float
    restart_s: float
    restore_s: float

    @property
    def seconds(self) -> float:
        """The whole time from the kill until the state was restored."""
        return self.detect_s + self.restart_s + self.restore_s


@dataclass(frozen=True)
class SaveCost:
    """The seconds that one checkpoint cost.

    `slowdown_s` is by how much the steps of the lag were longer than undisturbed ones.
    """

    stall_s: float
    lag_s: float
    slowdown_s: float


@dataclass(frozen=True)
class Profile:
    """The costs of one case, before the kills that judge the prediction.

    `start_s` is the time of the first start, which has no state to restore.
    """

    start_s: float
    ways_back: tuple[WayBack, ...]
    steps_s: tuple[float, ...]  # the undisturbed ones
    saves: tuple[SaveCost, ...]

    @property
    def step_s(self) -> float:
        """The median undisturbed step."""
        return statistics.median(self.steps_s)

    @property
    def recovery_s(self) -> float:
        """The mean time from a kill until the state was restored."""
        return statistics.mean(each.seconds for each in self.ways_back)


class TooLittle(Exception):
    """The first kills did not tell what the prediction needs. The message says what is missing."""


def profile(lives: Sequence[Life]) -> Profile:
    """Return the costs that some lives tell. Raises TooLittle where they tell none of some kind."""
    first = lives[0]
    undisturbed = undisturbed_s(lives)
    if not undisturbed:
        raise TooLittle("no step was undisturbed, because a checkpoint takes longer than 8 steps")
    mean_s = statistics.mean(undisturbed)
    saves = [_cost(save, each, mean_s) for each in lives for save in each.saves if _is_whole(save)]
    if not saves:
        raise TooLittle("no checkpoint was complete before the kill after it")
    pairs = zip(lives, lives[1:], strict=False)
    ways_back = [back for before, after in pairs if (back := way_back(before, after))]
    if first.restored_ns is None or not ways_back:
        raise TooLittle("the job never came back after a kill")
    start_s = (first.restored_ns - first.launched_ns) / 1e9
    return Profile(start_s, tuple(ways_back), tuple(undisturbed), tuple(saves))


def undisturbed_s(lives: Sequence[Life]) -> list[float]:
    """Return the seconds of all steps during which no checkpoint was written."""
    return [step.seconds for each in lives for step in each.steps if not step.disturbed]


def way_back(before: Life, after: Life) -> WayBack | None:
    """Return what the kill of a life cost; None where the next one did not come back."""
    if before.killed_ns is None or after.ready_ns is None or after.restored_ns is None:
        return None
    return WayBack(
        (before.ended_ns - before.killed_ns) / 1e9,
        (after.ready_ns - before.ended_ns) / 1e9,
        (after.restored_ns - after.ready_ns) / 1e9,
    )


def _is_whole(save: Save) -> bool:
    return save.complete_ns is not None


def _cost(save: Save, of_life: Life, mean_s: float) -> SaveCost:
    """Return the cost of a checkpoint, in whose lag steps were longer than the mean one."""
    assert save.complete_ns is not None
    slowdown_s = 0.0
    for step in of_life.steps:
        if step.end_ns > save.end_ns and step.begin_ns < save.complete_ns:
            slowdown_s += step.seconds - mean_s
    return SaveCost(save.stall_s, save.lag_s, slowdown_s)
