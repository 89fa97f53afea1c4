"""The costs that are compatible with the shares that large systems have published.

Nothing is fitted. A published share and failure rate leave a whole set of costs open, and this
lists them. It can only contradict the formula: where no setting is compatible, one of the two is
wrong.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

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

INTERVALS_S = (600.0, 1800.0, 3600.0, 2 * HOUR_S)
"""Intervals that a job may have had, beside the best one."""


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
    """Costs and an interval, and the share that they lead to, in seconds."""

    cost_s: float
    restart_s: float
    interval_s: float
    is_best: bool
    share: float


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


def compatible(system: System) -> list[Setting]:
    """Return every setting whose expected share lies in what a system has published."""
    made = []
    for cost_s, restart_s in itertools.product(COSTS_S, RESTARTS_S):
        best_s = oracle_s(cost_s, system.mtbf_s)
        for interval_s in (best_s, *INTERVALS_S):
            share = effective_share(Costs(cost_s, restart_s=restart_s), interval_s, system.mtbf_s)
            if system.low <= share <= system.high:
                is_best = math.isclose(interval_s, best_s)
                made.append(Setting(cost_s, restart_s, interval_s, is_best, share))
    return made
