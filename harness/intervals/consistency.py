"""The costs that are compatible with the shares that large systems have published.

Nothing is fitted. A published share and failure rate leave a whole set of costs open, and this
lists them. It can only contradict the formula: where no setting is compatible, one of the two is
wrong.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from scipy.optimize import brentq

from harness.intervals.costs import Costs
from harness.intervals.expected import effective_share
from harness.intervals.failures import NODE_FAILURES_PER_S
from harness.intervals.policies import oracle_s

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
COSTS_S = (1.0, 5.0, 30.0, 120.0)
"""The seconds that a checkpoint may add to the training."""

RESTARTS_S = (60.0, 300.0, 900.0, 1800.0)
"""The time that detection, restart and restore may take together."""


@dataclass(frozen=True)
class System:
    """A published job: the mean time between its failures, and the share of the time that trained.

    `source` says which of these numbers are published, and which are assumed.
    """

    name: str
    mtbf_s: float
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Setting:
    """Costs in seconds, and the intervals that lead to a published share with them.

    `intervals_s` has the shortest and the longest interval of each range. There are two ranges
    where the best interval is better than what is published, and none where it is worse.
    `best_share` is the share at the best interval.
    """

    cost_s: float
    restart_s: float
    best_share: float
    intervals_s: tuple[tuple[float, float], ...]


SYSTEMS = (
    System(
        "Llama 3, 16,384 GPUs",
        54 * DAY_S / 419,
        0.90,
        1.0,
        "419 unexpected interruptions in 54 days, and more than 90 % (Llama 3's report)",
    ),
    System(
        "Meta RSC, 1,024 GPUs",
        7.9 * HOUR_S,
        0.85,
        0.95,
        "a mean time to failure of 7.9 hours (Kokolis et al., HPCA 2025); 0.9 is what they ask of "
        "a job, and here a range of 5 points on each side",
    ),
    System(
        "ByteRobust, 9,600 GPUs",
        1.0 / (9600 / 8 * NODE_FAILURES_PER_S),
        0.965,
        0.975,
        "97 % over three months (Wan et al., 2025); the failures are not known here, so the usual "
        "4 in 1,000 node-days are assumed",
    ),
)


def settings(system: System) -> list[Setting]:
    """Return for all costs and restarts which intervals lead to what a system has published."""
    pairs = itertools.product(COSTS_S, RESTARTS_S)
    return [_setting(system, cost_s, restart_s) for cost_s, restart_s in pairs]


def _setting(system: System, cost_s: float, restart_s: float) -> Setting:
    costs = Costs(cost_s, restart_s=restart_s)
    best_s = oracle_s(cost_s, system.mtbf_s)
    best_share = effective_share(costs, best_s, system.mtbf_s)
    if best_share < system.low:
        return Setting(cost_s, restart_s, best_share, ())
    # The share falls to 0 on both sides of the best interval.
    short_s = best_s * 1e-6
    long_s = system.mtbf_s * 100.0

    def reaching(share: float, far_s: float) -> float:
        """Return the interval between a far one and the best one that has a share."""
        found_s: float = brentq(
            lambda each_s: effective_share(costs, each_s, system.mtbf_s) - share, far_s, best_s
        )
        return found_s

    first_s = reaching(system.low, short_s)
    last_s = reaching(system.low, long_s)
    ranges: tuple[tuple[float, float], ...] = ((first_s, last_s),)
    if best_share > system.high:
        before_s = reaching(system.high, short_s)
        after_s = reaching(system.high, long_s)
        ranges = ((first_s, before_s), (after_s, last_s))
    return Setting(cost_s, restart_s, best_share, ranges)
