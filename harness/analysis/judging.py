"""Advice judged by a replay: over random draws of a job from a trace, or of random failures.

All methods go through the same draws, so their differences are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from harness.analysis import advice
from harness.analysis.advice import Advice, Assumed, Measured
from harness.analysis.means import mean_with_interval
from harness.analysis.statistics import Estimate
from harness.intervals import elastic, expected, failures, replay
from harness.intervals.costs import Costs
from harness.intervals.expected import Shares
from harness.intervals.failures import NodeFailures, RandomFailures
from harness.intervals.replay import Floats

DRAWS = 100
REPLAYED = "replayed"
"""The policy that takes the interval which was best in the first half of a trace."""

Source = NodeFailures | RandomFailures
"""The failures that a job is drawn from: those of a trace, or any at random instants."""

_SEED = 2026
_TRIED = np.geomspace(1 / 8, 8.0, 21)  # intervals, in parts of the one that the formula advises


@dataclass(frozen=True)
class Judged:
    """The effective share of a method over random draws of a job from a trace.

    `shares` are the means of all parts of the time.
    """

    shares: Shares
    low: float  # the 5th and 95th percentile of the effective share over the draws
    high: float

    def to_json(self) -> dict[str, Any]:
        """Return it as flat JSON values."""
        parts = {f"in_trace_lost_{part}": getattr(self.shares, part) for part in expected.PARTS}
        return {
            "in_trace": self.shares.effective,
            "in_trace_p5": self.low,
            "in_trace_p95": self.high,
            **parts,
            "in_trace_largest_loss": self.shares.largest_loss,
        }


@dataclass(frozen=True)
class JobInTrace:
    """A job of so many nodes, whose failures are drawn from a part of a named trace."""

    trace: str
    failures: NodeFailures
    nodes: int


@dataclass(frozen=True)
class Spares:
    """The effective share with a number of spare nodes, for each node that is paid for.

    A job without spares waits for a repair, or it shrinks until then. Nobody pays for a node that
    is under repair. `waiting_behind` and `shrinking_behind` are the differences to the number of
    spares that is best for that, with their 95 % intervals over the draws.
    """

    count: int
    waiting: float
    shrinking: float
    waiting_behind: Estimate
    shrinking_behind: Estimate

    def to_json(self) -> dict[str, float]:
        """Return it as flat JSON values. Each difference has its interval behind it."""
        return {
            "count": self.count,
            "waiting": self.waiting,
            "waiting_behind": self.waiting_behind.value,
            "waiting_behind_low": self.waiting_behind.low,
            "waiting_behind_high": self.waiting_behind.high,
            "shrinking": self.shrinking,
            "shrinking_behind": self.shrinking_behind.value,
            "shrinking_behind_low": self.shrinking_behind.low,
            "shrinking_behind_high": self.shrinking_behind.high,
        }


def judged(advised: Sequence[Advice], job: JobInTrace) -> list[Judged]:
    """Return how the time of each method divides, without spares."""
    costs, intervals_s = _of(advised)
    draws = [
        replay.shares(replay.interruptions(nodes, job.nodes), costs, intervals_s)
        for nodes in _draws(job.failures, job.nodes, 0)
    ]
    by_part = {name: np.array([draw[name] for draw in draws]) for name in draws[0]}
    means = {name: by_draw.mean(axis=0).tolist() for name, by_draw in by_part.items()}
    low, high = np.percentile(by_part["effective"], (5, 95), axis=0).tolist()
    made = []
    for number in range(len(advised)):
        shares = Shares(**{name: values[number] for name, values in means.items()})
        made.append(Judged(shares, low[number], high[number]))
    return made


def shares_at(costs: Sequence[Costs], intervals_s: Floats, job: JobInTrace) -> Floats:
    """Return the effective share of each method at its intervals, which are a line each.

    It is the mean over the draws, without spares.
    """
    total = np.zeros(intervals_s.shape)
    for nodes in _draws(job.failures, job.nodes, 0):
        found = replay.interruptions(nodes, job.nodes)
        total += replay.effective_shares(found, costs, intervals_s)
    return total / DRAWS


def with_spares(one: Advice, source: Source, needed: int, most: int) -> list[Spares]:
    """Return what each number of spares is worth with a method, from none to the most."""
    costs, intervals_s = _of([one])
    waiting: list[list[float]] = []
    shrinking: list[list[float]] = []
    for draws in _with_each_number(source, needed, most):
        waiting.append([])
        shrinking.append([])
        for nodes in draws:
            found = replay.interruptions(nodes, needed)
            waits = replay.effective_shares(found, costs, intervals_s)
            shrinks = elastic.effective_shares(nodes, needed, costs, intervals_s)
            # The share is of the needed nodes, and the price of those that are there. Nobody pays
            # where all are broken all the time.
            paid_node_s = nodes.paid_node_s
            needed_to_paid = needed * nodes.length_s / paid_node_s if paid_node_s else 0.0
            waiting[-1].append(needed_to_paid * float(waits[0, 0]))
            shrinking[-1].append(needed_to_paid * float(shrinks[0, 0]))
    behind = zip(_behind_the_best(waiting), _behind_the_best(shrinking), strict=True)
    return [
        Spares(count, fmean(waiting[count]), fmean(shrinking[count]), *differences)
        for count, differences in enumerate(behind)
    ]


def _behind_the_best(by_draw: Sequence[Sequence[float]]) -> list[Estimate]:
    """Return how far the mean of each is behind that of the best, draw by draw.

    The intervals hold for all of them together.
    """
    best = max(by_draw, key=fmean)
    others = max(1, len(by_draw) - 1)
    return [mean_with_interval(np.array(each) - np.array(best), others) for each in by_draw]


def replayed(found: Sequence[Measured], assumed: Assumed, learnt: JobInTrace) -> list[Advice]:
    """Return for each method the interval that is best in draws from what is learnt."""
    advised = [advice.advise(one, assumed) for one in found]
    costs = [one.costs for one in found]
    least_s = np.array([[advice.shortest_s(one, assumed)] for one in found])
    formula_s = np.array([[each.interval_s] for each in advised])
    intervals_s = np.maximum(formula_s * _TRIED, least_s)
    best = shares_at(costs, intervals_s, learnt).argmax(axis=1)
    best_s = intervals_s[np.arange(len(found)), best].tolist()
    pairs = zip(found, best_s, strict=True)
    return [advice.at_interval(one, assumed, interval_s) for one, interval_s in pairs]


def _with_each_number(source: Source, needed: int, most: int) -> Iterator[Iterator[NodeFailures]]:
    """Yield the draws of a job with each number of spares. All numbers meet the same failures."""
    if isinstance(source, NodeFailures):
        for count in range(most + 1):
            yield _draws(source, needed, count)
        return
    rng = np.random.default_rng(_SEED)
    largest = [source.draw(needed + most, needed, rng) for _ in range(DRAWS)]
    for count in range(most + 1):
        yield (failures.of_first_nodes(each, needed + count) for each in largest)


def _draws(trace: NodeFailures, needed: int, spares: int) -> Iterator[NodeFailures]:
    rng = np.random.default_rng(_SEED)
    for _ in range(DRAWS):
        yield failures.chosen(trace, needed + spares, rng)


def _of(advised: Sequence[Advice]) -> tuple[list[Costs], Floats]:
    """Return the costs of each method, and its interval in a column."""
    costs = [each.measured.costs for each in advised]
    return costs, np.array([[each.interval_s] for each in advised])
