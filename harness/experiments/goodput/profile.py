"""The costs that a control tells by its lives: of steps, of checkpoints, and of ways back."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.experiments.goodput.lives import Life, Save, Step

_NEIGHBOURS = 4  # undisturbed steps before a checkpoint, and as many after it


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
class LifeCosts:
    """The costs that one life tells.

    `start_s` is the time of its start without a state to restore, and `way_back` what the kill
    before it cost; both are None where it never came so far. `steps_s` are its undisturbed steps.
    The first checkpoint of a process may cost more than the others, because it makes its buffers,
    or starts its helpers. The last one of a life is left out. The kill after it would leave out
    those that take long.
    """

    start_s: float | None
    way_back: KillCost | None
    steps_s: tuple[float, ...]
    first_save: SaveCost | None
    saves: tuple[SaveCost, ...]  # between the first and the last one

    @property
    def tells_training(self) -> bool:
        """Return whether it had undisturbed steps, and checkpoints between the first and last."""
        return bool(self.steps_s and self.saves)


@dataclass(frozen=True)
class Profile:
    """The costs of one case. Steps and checkpoints are those of the lives that have both."""

    lives: tuple[LifeCosts, ...]

    @property
    def start_s(self) -> float:
        """The time of a start without a state to restore."""
        return statistics.median(each.start_s for each in self.lives if each.start_s is not None)

    @property
    def ways_back(self) -> list[KillCost]:
        """The ways back that the lives began with."""
        return [each.way_back for each in self.lives if each.way_back is not None]

    @property
    def training(self) -> list[LifeCosts]:
        """The lives that tell the costs of training."""
        return [each for each in self.lives if each.tells_training]

    @property
    def step_s(self) -> float:
        """The mean undisturbed step."""
        return statistics.fmean(seconds for each in self.training for seconds in each.steps_s)

    @property
    def recovery_s(self) -> float:
        """The mean time from a kill until the state was restored."""
        return statistics.fmean(each.seconds for each in self.ways_back)


class TooLittle(Exception):
    """The control did not tell what the prediction needs. The message says what is missing."""


def profile(lives: Sequence[LifeCosts]) -> Profile:
    """Return the costs that some lives tell. Raises TooLittle where they tell none of some kind."""
    made = Profile(tuple(lives))
    if not any(each.steps_s for each in lives):
        raise TooLittle("no step was undisturbed, because checkpoints follow one another")
    if not made.training:
        raise TooLittle("no life had three checkpoints before its kill")
    if not made.ways_back:
        raise TooLittle("the job never came back after a kill")
    return made


def life_costs(found: Life, before: Life | None) -> LifeCosts:
    """Return what a life tells, and the kill that ended the one before."""
    steps_s = tuple(undisturbed_s([found]))
    saves: list[SaveCost] = []
    if steps_s:  # else nobody knows how slow the others are
        saves = [_cost(save, found.steps) for save in found.saves[:-1]]
    return LifeCosts(
        start_s=_start_s(found),
        way_back=None if before is None else way_back(before, found),
        steps_s=steps_s,
        first_save=saves[0] if saves else None,
        saves=tuple(saves[1:]),
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


def _start_s(found: Life) -> float | None:
    """Return the seconds until the ranks were there; None where they never were."""
    if found.ready_ns is None:
        return None
    return (found.ready_ns - found.launched_ns) / 1e9


def _cost(save: Save, steps: Sequence[Step]) -> SaveCost:
    """Return the cost of a checkpoint in a life with these steps, of which some are undisturbed.

    The steps of its lag are compared with those just before and after, because a shared machine is
    slower for some seconds, and then faster again.
    """
    assert save.complete_ns is not None
    before = [step for step in steps if step.end_ns <= save.end_ns]
    after = [step for step in steps if step.begin_ns >= save.complete_ns]
    slowed = steps[len(before) : len(steps) - len(after)]
    around_s = [
        *[step.seconds for step in before if not step.disturbed][-_NEIGHBOURS:],
        *[step.seconds for step in after if not step.disturbed][:_NEIGHBOURS],
    ]
    usual_s = statistics.fmean(around_s)
    return SaveCost(save.stall_s, save.lag_s, sum(step.seconds - usual_s for step in slowed))
