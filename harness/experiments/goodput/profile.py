"""The costs that the first kills of a case tell: of steps, of checkpoints, and of ways back."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.experiments.goodput.lives import Life, Save


@dataclass(frozen=True)
class KillCost:
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

    `start_s` is the time of a start without a state to restore. `steps_s` are the undisturbed steps
    of each life. The first checkpoint of a process may cost more than the others, because it makes
    its buffers, or starts its helpers.
    """

    start_s: float
    ways_back: tuple[KillCost, ...]
    steps_s: tuple[tuple[float, ...], ...]
    first_saves: tuple[SaveCost, ...]
    saves: tuple[SaveCost, ...]  # those between the first and the last one of a life

    @property
    def all_steps_s(self) -> list[float]:
        """The undisturbed steps of all lives."""
        return [seconds for life_s in self.steps_s for seconds in life_s]

    @property
    def step_s(self) -> float:
        """The mean undisturbed step."""
        return statistics.fmean(self.all_steps_s)

    @property
    def recovery_s(self) -> float:
        """The mean time from a kill until the state was restored."""
        return statistics.mean(each.seconds for each in self.ways_back)


class TooLittle(Exception):
    """The first kills did not tell what the prediction needs. The message says what is missing."""


def profile(lives: Sequence[Life]) -> Profile:
    """Return the costs that some lives tell. Raises TooLittle where they tell none of some kind.

    The last checkpoint of a life is left out. The kill after it would leave out those that take
    long.
    """
    steps_s = [tuple(undisturbed_s([each])) for each in lives]
    undisturbed = [seconds for life_s in steps_s for seconds in life_s]
    if not undisturbed:
        raise TooLittle("no step was undisturbed, because checkpoints follow one another")
    mean_s = statistics.mean(undisturbed)
    costs = [[_cost(save, each, mean_s) for save in each.saves[:-1]] for each in lives]
    first_saves = [of_life[0] for of_life in costs if of_life]
    saves = [cost for of_life in costs for cost in of_life[1:]]
    if not saves:
        raise TooLittle("no life had three checkpoints before its kill")
    pairs = zip(lives, lives[1:], strict=False)
    ways_back = [back for before, after in pairs if (back := way_back(before, after))]
    if not ways_back:
        raise TooLittle("the job never came back after a kill")
    starts_s = [(each.ready_ns - each.launched_ns) / 1e9 for each in lives if each.ready_ns]
    return Profile(
        statistics.median(starts_s),
        tuple(ways_back),
        tuple(filter(None, steps_s)),
        tuple(first_saves),
        tuple(saves),
    )


def undisturbed_s(lives: Sequence[Life]) -> list[float]:
    """Return the seconds of all steps during which no checkpoint was written."""
    return [step.seconds for each in lives for step in each.steps if not step.disturbed]


def way_back(before: Life, after: Life) -> KillCost | None:
    """Return what the kill of a life cost; None where the next one did not come back."""
    if before.killed_ns is None or after.ready_ns is None or after.restored_ns is None:
        return None
    return KillCost(
        (before.ended_ns - before.killed_ns) / 1e9,
        (after.ready_ns - before.ended_ns) / 1e9,
        (after.restored_ns - after.ready_ns) / 1e9,
    )


def _cost(save: Save, of_life: Life, mean_s: float) -> SaveCost:
    """Return the cost of a checkpoint, in whose lag steps were longer than the mean one."""
    assert save.complete_ns is not None
    slowdown_s = 0.0
    for step in of_life.steps:
        if step.end_ns > save.end_ns and step.begin_ns < save.complete_ns:
            slowdown_s += step.seconds - mean_s
    return SaveCost(save.stall_s, save.lag_s, slowdown_s)
