"""The effective training time under failures at random instants: exponential, and exact.

A life of the job ends with a failure. Failures have no memory, so lives last 1 / rate on average,
whatever happened before. In a life of w seconds, floor((w - lag) / (interval + cost)) checkpoints
become durable. Its mean over w is exp(-rate lag) / (exp(rate (interval + cost)) - 1). A recovery of
R seconds that begins again after a failure takes (exp(rate R) - 1) / rate. Without a lag this is
Daly's formula (2006, equation 20).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from harness.intervals.costs import Costs
from harness.intervals.values import require_positive

_ENDLESS = 700.0  # exp of more does not fit into a float
_HALVINGS = 60

PARTS = ("checkpoints", "recompute", "detect", "wait", "restart", "restore")


@dataclass(frozen=True)
class Shares:
    """The time of a job as shares of the whole, which add up to 1."""

    effective: float
    checkpoints: float
    recompute: float
    detect: float
    restart: float
    restore: float
    wait: float = 0.0  # for a node; only a replay knows how long repairs take

    @property
    def lost(self) -> float:
        """The share that is lost."""
        return 1.0 - self.effective

    @property
    def largest_loss(self) -> str:
        """The name of the largest part of what is lost."""
        return max(PARTS, key=lambda part: getattr(self, part))


def effective_share(costs: Costs, interval_s: float, mtbf_s: float) -> float:
    """Return the share of the time that trains, with a checkpoint after each interval of work."""
    require_positive("an interval", interval_s)
    require_positive("an MTBF", mtbf_s)
    rate = 1.0 / mtbf_s
    exponent = rate * (interval_s + costs.training_s)
    if exponent > _ENDLESS:
        return 0.0
    durable = math.exp(-rate * (costs.recovery_s + costs.lag_s))
    return rate * interval_s * durable / math.expm1(exponent)


def shares(costs: Costs, interval_s: float, mtbf_s: float) -> Shares:
    """Return how the time divides into training that is kept, and each part of the loss."""
    effective = effective_share(costs, interval_s, mtbf_s)
    rate = 1.0 / mtbf_s
    # Everything is a share of a life and the recovery after it: exp(rate R) / rate seconds.
    alive = math.exp(-rate * costs.recovery_s)
    segment_s = interval_s + costs.training_s
    in_checkpoints = math.exp(-rate * interval_s) * -math.expm1(-rate * costs.training_s)
    checkpoints = alive * in_checkpoints / -math.expm1(-rate * segment_s)
    recompute = max(0.0, alive - effective - checkpoints)
    return Shares(effective, checkpoints, recompute, **_phases(costs, rate))


def _phases(costs: Costs, rate: float) -> dict[str, float]:
    """Return the share of each phase of the recoveries.

    A phase is reached only where no failure hits those before it, because a recovery then begins
    again. So early phases take more of the time than their part of one recovery.
    """
    found = {}
    before_s = 0.0
    for phase in ("detect", "restart", "restore"):
        own_s = getattr(costs, f"{phase}_s")
        found[phase] = math.exp(-rate * before_s) * -math.expm1(-rate * own_s)
        before_s += own_s
    return found


def flat_from_to(
    costs: Costs, best_s: float, mtbf_s: float, within: float = 0.005
) -> tuple[float, float]:
    """Return the shortest and longest interval whose effective share is nearly that of the best.

    `within` is the difference that is allowed, as a share.
    """
    enough = effective_share(costs, best_s, mtbf_s) - within

    def is_enough(interval_s: float) -> bool:
        return effective_share(costs, interval_s, mtbf_s) >= enough

    low_s = _boundary(is_enough, best_s, best_s * 1e-6)
    return max(low_s, costs.lag_s), _boundary(is_enough, best_s, best_s * 1e6)


def _boundary(is_enough: Callable[[float], bool], good_s: float, bad_s: float) -> float:
    """Return the interval between a good and a bad one at which it changes, by bisection."""
    if is_enough(bad_s):
        return bad_s
    for _ in range(_HALVINGS):
        middle_s = math.sqrt(good_s * bad_s)
        if is_enough(middle_s):
            good_s = middle_s
        else:
            bad_s = middle_s
    return good_s
