"""Checkpoints of several levels, such as a node's memory and a shared storage, under failures.

Each level survives some classes of failures and not others. The memory of a node survives the death
of a process, and dies with its node. After a failure, the newest checkpoint that survived is
restored. If another failure strikes during that, it begins again, perhaps from another level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.intervals.costs import Costs
from harness.intervals.policies import levels_s
from harness.intervals.replay import Interruptions
from harness.intervals.values import require_positive


@dataclass(frozen=True)
class Level:
    """One level: what its checkpoints cost, and the classes of failures that they survive.

    Every `every`-th checkpoint of the job is kept on this level, too.
    """

    name: str
    costs: Costs
    survives: frozenset[str]
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(
                f"level {self.name}: every is {self.every}; give a whole number from 1"
            )


@dataclass(frozen=True)
class Failure:
    """A failure: its instant, its class, and the seconds until the job has all nodes again."""

    at_s: float
    kind: str
    wait_s: float = 0.0


@dataclass
class _Job:
    """The state of a job between two failures.

    `saved` counts the checkpoints that the job's present position is worth, and `newest` those of
    the newest one of each level. Training goes on at `begin_s`.
    """

    newest: list[int]
    saved: int = 0
    begin_s: float = 0.0


def effective_share(
    found: Sequence[Failure],
    length_s: float,
    levels: Sequence[Level],
    interval_s: float,
    begin_s: float = 0.0,
) -> float:
    """Return the share of the time that trains, with a checkpoint after each interval of work.

    A failure that no level survives costs all that was trained. The failures are in the order of
    time. The job begins at `begin_s`.
    """
    require_positive("an interval", interval_s)
    job = _Job([0] * len(levels), begin_s=begin_s)
    for failure in found:
        _advance(job, failure.at_s - job.begin_s, levels, interval_s)
        for number, level in enumerate(levels):
            if failure.kind not in level.survives:
                job.newest[number] = 0
        number = max(range(len(levels)), key=lambda each: job.newest[each])
        job.saved = job.newest[number]
        costs = levels[number].costs
        # Where nothing is left, there is nothing to restore.
        recovery_s = costs.recovery_s if job.saved else costs.recovery_s - costs.restore_s
        job.begin_s = failure.at_s + failure.wait_s + recovery_s
    alive_s = max(0.0, length_s - job.begin_s)
    count = _checkpoints_in(alive_s, job.saved, levels, interval_s, lag_s=0.0)
    rest_s = alive_s - _taken_s(count, job.saved, levels, interval_s)
    trained_s = (job.saved + count) * interval_s + min(rest_s, interval_s)
    return trained_s / length_s


def best_levels(levels: Sequence[Level], rates_per_s: Sequence[float]) -> tuple[float, list[Level]]:
    """Return the interval, and the levels with the multiples of it that are best to first order.

    `rates_per_s` are the rates of failures whose cheapest surviving level is this one. The levels
    come in the order of their costs, the cheapest first. Each interval is at least the lag.
    """
    costs_s = [level.costs.training_s for level in levels]
    best_s = levels_s(costs_s, rates_per_s)
    interval_s = max(best_s[0], levels[0].costs.lag_s)
    require_positive("the interval of the cheapest level", interval_s)
    made = []
    for level, own_s in zip(levels, best_s, strict=True):
        every = max(1, round(own_s / interval_s), math.ceil(level.costs.lag_s / interval_s))
        made.append(Level(level.name, level.costs, level.survives, every))
    return interval_s, made


def drawn(
    rates_per_s: dict[str, float], length_s: float, rng: np.random.Generator
) -> list[Failure]:
    """Return failures of each class at random instants."""
    made = []
    for kind, rate_per_s in rates_per_s.items():
        count = rng.poisson(rate_per_s * length_s)
        made += [Failure(float(at_s), kind) for at_s in rng.uniform(0.0, length_s, count)]
    return sorted(made, key=lambda failure: failure.at_s)


def of_job(found: Interruptions) -> list[Failure]:
    """Return the interruptions of a job as failures of the classes "process" and "node"."""
    triples = zip(found.at_s.tolist(), found.of_process, found.wait_s.tolist(), strict=True)
    return [
        Failure(at_s, "process" if of_process else "node", wait_s)
        for at_s, of_process, wait_s in triples
    ]


def _advance(job: _Job, alive_s: float, levels: Sequence[Level], interval_s: float) -> None:
    """Note the newest checkpoint of each level that a life leaves. It may have ended early."""
    if alive_s <= 0.0:
        return
    for number, level in enumerate(levels):
        count = _checkpoints_in(alive_s, job.saved, levels, interval_s, level.costs.lag_s)
        newest = (job.saved + count) // level.every * level.every
        # The restored one is older than the life, and stays where it was.
        if newest > job.saved:
            job.newest[number] = newest


def _checkpoints_in(
    alive_s: float, saved: int, levels: Sequence[Level], interval_s: float, lag_s: float
) -> int:
    """Return how many checkpoints a life takes that are durable a lag before its end."""
    low, high = 0, int(alive_s / interval_s) + 1
    while low < high:
        middle = (low + high + 1) // 2
        if _taken_s(middle, saved, levels, interval_s) + lag_s <= alive_s:
            low = middle
        else:
            high = middle - 1
    return low


def _taken_s(count: int, saved: int, levels: Sequence[Level], interval_s: float) -> float:
    """Return how long a life takes for so many checkpoints, after those that it began with."""
    total_s = count * interval_s
    for level in levels:
        number = (saved + count) // level.every - saved // level.every
        total_s += number * level.costs.training_s
    return total_s
