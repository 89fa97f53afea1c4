"""Advice judged by real failures: over random draws of a job from a trace.

All methods go through the same draws, so their differences are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis import advice
from harness.analysis.advice import Advice, Assumed, Measured
from harness.intervals import elastic, failures, replay
from harness.intervals.costs import Costs
from harness.intervals.failures import NodeFailures
from harness.intervals.replay import Floats

DRAWS = 100
REPLAYED = "replayed"
"""The policy that takes the interval which was best in the first half of a trace."""

_SEED = 2026
_TRIED = np.geomspace(1 / 8, 8.0, 20)  # intervals, in parts of the one that the formula advises


@dataclass(frozen=True)
class Judged:
    """The effective share of a method over random draws of a job from a trace."""

    mean: float
    low: float  # the 5th and 95th percentile of the draws
    high: float


@dataclass(frozen=True)
class Spares:
    """The effective share with a number of spare nodes, for each node that is paid for.

    A job without spares waits for a repair, or it shrinks until then.
    """

    count: int
    waiting: float
    shrinking: float


def judged(advised: Sequence[Advice], trace: NodeFailures, needed: int) -> list[Judged]:
    """Return the share of the time that each method trains, without spares."""
    by_method = np.array(list(_waiting(advised, trace, needed, 0))).T
    low, high = np.percentile(by_method, (5, 95), axis=1)
    means = by_method.mean(axis=1)
    triples = zip(means.tolist(), low.tolist(), high.tolist(), strict=True)
    return [Judged(mean, least, most) for mean, least, most in triples]


def with_spares(one: Advice, trace: NodeFailures, needed: int, most: int) -> list[Spares]:
    """Return what each number of spares is worth with a method, from none to the most."""
    made = []
    for count in range(most + 1):
        paid = needed / (needed + count)
        waiting = np.mean(list(_waiting([one], trace, needed, count)))
        shrinking = np.mean(list(_shrinking(one, trace, needed, count)))
        made.append(Spares(count, float(waiting) * paid, float(shrinking) * paid))
    return made


def replayed(
    found: Sequence[Measured], assumed: Assumed, learnt: NodeFailures, needed: int
) -> list[Advice]:
    """Return for each method the interval that is best in draws from what is learnt."""
    advised = [advice.advise(one, assumed) for one in found]
    costs = [one.costs for one in found]
    least_s = np.array([[max(one.costs.lag_s, one.step_s or 0.0)] for one in found])
    formula_s = np.array([[each.interval_s] for each in advised])
    intervals_s = np.maximum(formula_s * _TRIED, least_s)
    total = np.zeros(intervals_s.shape)
    for nodes in _draws(learnt, needed, 0):
        found_here = replay.interruptions(nodes, needed)
        total += replay.effective_shares(found_here, costs, intervals_s)
    best_s = intervals_s[np.arange(len(found)), total.argmax(axis=1)].tolist()
    pairs = zip(found, best_s, strict=True)
    return [advice.at_interval(one, assumed, interval_s) for one, interval_s in pairs]


def _waiting(
    advised: Sequence[Advice], trace: NodeFailures, needed: int, spares: int
) -> Iterator[Floats]:
    """Yield the share of each method in each draw of a job that waits for repairs."""
    costs, intervals_s = _of(advised)
    for nodes in _draws(trace, needed, spares):
        found = replay.interruptions(nodes, needed)
        yield replay.effective_shares(found, costs, intervals_s)[:, 0]


def _shrinking(one: Advice, trace: NodeFailures, needed: int, spares: int) -> Iterator[Floats]:
    """Yield the share of a method in each draw of a job that shrinks."""
    costs, intervals_s = _of([one])
    for nodes in _draws(trace, needed, spares):
        yield elastic.effective_shares(nodes, needed, costs, intervals_s)[:, 0]


def _draws(trace: NodeFailures, needed: int, spares: int) -> Iterator[NodeFailures]:
    rng = np.random.default_rng(_SEED)
    for _ in range(DRAWS):
        yield failures.chosen(trace, needed + spares, rng)


def _of(advised: Sequence[Advice]) -> tuple[list[Costs], Floats]:
    """Return the costs of each method, and its interval in a column."""
    costs = [each.measured.costs for each in advised]
    return costs, np.array([[each.interval_s] for each in advised])
