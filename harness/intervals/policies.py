"""Policies: each answers whether to take a checkpoint now, and says where its answer comes from.

Times are in seconds. `mtbf_s` is the mean time between two failures of the whole job, and
`training_s` what one checkpoint adds to the training. The interval is work between two checkpoints,
without the time that they take themselves. Wrong values raise ValueError.

A training script may import this, so it needs the standard library alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from harness.intervals.costs import Costs
from harness.intervals.values import require_budget, require_cost, require_positive


class Policy(ABC):
    """A policy, which answers one question alone."""

    @abstractmethod
    def checkpoint_now(self, work_s: float, trained_s: float) -> bool:
        """Return whether to save now.

        `work_s` seconds were trained since the last checkpoint, and `trained_s` in all.
        """


class Never(Policy):
    """No checkpoint at all."""

    def checkpoint_now(self, work_s: float, trained_s: float) -> bool:
        return False


class Every(Policy):
    """A checkpoint after each interval of work."""

    def __init__(self, interval_s: float) -> None:
        require_positive("an interval", interval_s)
        self.interval_s = interval_s

    def checkpoint_now(self, work_s: float, trained_s: float) -> bool:
        return work_s >= self.interval_s


def young_s(training_s: float, mtbf_s: float) -> float:
    """Return Young's interval, a first-order approximation: the root of 2 x cost x MTBF.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM
    17(9), 1974.
    """
    _require(training_s, mtbf_s)
    return math.sqrt(2.0 * training_s * mtbf_s)


def daly_s(training_s: float, mtbf_s: float) -> float:
    """Return Daly's interval, a higher-order approximation.

    Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", FGCS 22(3), 2006, equation 37.
    """
    _require(training_s, mtbf_s)
    if training_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = training_s / (2.0 * mtbf_s)
    series = 1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0
    return young_s(training_s, mtbf_s) * series - training_s


def oracle_s(training_s: float, mtbf_s: float) -> float:
    """Return the best interval under exponential failures, by Lambert's W.

    It is where the derivative of Daly's exact run time is zero: the effective time is proportional
    to tau / (exp((tau + cost) / MTBF) - 1), so exp(x) (1 - x) = exp(-cost / MTBF) for x = tau /
    MTBF. The restart and the lag are factors that do not move the optimum.
    """
    _require(training_s, mtbf_s)
    return mtbf_s * _best_share(training_s / mtbf_s)


_SMALL = 1e-6  # of a cost over the MTBF
_MOST_STEPS = 50  # fewer than 20 are enough


def _best_share(ratio: float) -> float:
    """Return x = 1 + W0(-exp(-1 - ratio)), which solves exp(x) (1 - x) = exp(-ratio).

    Source of the series at the branch point: Corless, Gonnet, Hare, Jeffrey, Knuth, "On the Lambert
    W function", Adv. Comput. Math. 5, 1996, section 4.
    """
    if ratio < _SMALL:
        # Next to 1, the rest below would lose the digits of a small x. The first term is Young's.
        root = math.sqrt(2.0 * ratio)
        return root - root**2 / 3.0 + root**3 / 36.0
    # Newton's method for log(rest) - rest + 1 + ratio = 0, where rest = 1 - x. The function is
    # concave and grows, so from below the root each step comes nearer and never passes it.
    rest = math.exp(-1.0 - ratio)
    if rest == 0.0:
        return 1.0
    for _ in range(_MOST_STEPS):
        step = (math.log(rest) - rest + 1.0 + ratio) * rest / (1.0 - rest)
        rest -= step
        if abs(step) <= 1e-15 * rest:
            break
    return 1.0 - rest


def _require(training_s: float, mtbf_s: float) -> None:
    require_cost("training_s", training_s)
    require_positive("an MTBF", mtbf_s)


FORMULAS: dict[str, Callable[[float, float], float]] = {
    "oracle": oracle_s,
    "young": young_s,
    "daly": daly_s,
}
"""Intervals from what a checkpoint costs and the mean time between failures, by name."""


def bounded_s(
    costs: Costs, mtbf_s: float, budget: float | None = None, formula: str = "oracle"
) -> float:
    """Return the interval of a formula that an asynchronous checkpoint and a budget allow.

    A checkpoint must be durable before the next one begins, so the interval is at least the lag.
    With a budget, the overhead without failures must not exceed that share of the training time,
    so the interval is at least the cost over the budget.
    """
    if formula not in FORMULAS:
        raise ValueError(f"unknown policy '{formula}'; choose one of {', '.join(FORMULAS)}")
    if budget is not None:
        require_budget(budget)
    interval_s = max(FORMULAS[formula](costs.training_s, mtbf_s), costs.lag_s)
    if budget is not None:
        interval_s = max(interval_s, costs.training_s / budget)
    return interval_s


def levels_s(training_s: Sequence[float], rates_per_s: Sequence[float]) -> list[float]:
    """Return the interval of each level of checkpoints: the root of 2 x cost / rate.

    `rates_per_s` are the rates of failures whose cheapest surviving level is this one. Source: the
    first-order optimum of Young for each level by itself, as in Di et al., "Optimization of
    multi-level checkpoint model for large scale HPC applications", IPDPS 2014.
    """
    if len(training_s) != len(rates_per_s):
        raise ValueError(
            f"{len(training_s)} costs and {len(rates_per_s)} rates; give one of each for a level"
        )
    for rate in rates_per_s:
        if not 0 < rate < math.inf:
            raise ValueError(f"a rate of {rate} is not a finite number above 0; give failures a s")
    pairs = zip(training_s, rates_per_s, strict=True)
    return [young_s(cost_s, 1.0 / rate) for cost_s, rate in pairs]


CHECKFREQ_BUDGET = 0.035
"""The budget of CheckFreq's paper. Its code has 0.05 as default."""


class CheckFreq(Policy):
    """CheckFreq's interval where the costs are known and stay: the shortest within a budget.

    It knows no failure rate. `checkfreq` has the policy that measures the costs itself. Source:
    Mohan, Phanishayee, Chidambaram, "CheckFreq: frequent, fine-grained DNN checkpointing", FAST
    2021.
    """

    def __init__(self, costs: Costs, budget: float = CHECKFREQ_BUDGET) -> None:
        require_budget(budget)
        self.interval_s = max(costs.lag_s, costs.training_s / budget)

    def checkpoint_now(self, work_s: float, trained_s: float) -> bool:
        return work_s >= self.interval_s
