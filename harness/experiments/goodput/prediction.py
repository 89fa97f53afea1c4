"""The predicted share of lost time, for kills at given instants.

Each of many draws takes a way back for each kill from those that were seen, and resamples steps and
checkpoints. The percentiles over the draws are the interval of the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.experiments.goodput.profile import Profile, SaveCost
from harness.experiments.goodput.records import VARIANTS, Predicted
from harness.intervals import policies, replay
from harness.intervals.costs import Costs
from harness.intervals.replay import Interruptions

_DRAWS = 400

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Kills:
    """The instants at which ranks are to be killed, and the end, in seconds from the start."""

    at_s: tuple[float, ...]
    length_s: float


def advised_steps(profile: Profile, mtbf_s: float) -> int:
    """Return the number of steps between two checkpoints that `ckptbench advise` would choose."""
    cost = _mean_cost(profile.saves)
    costs = Costs(cost.stall_s + max(0.0, cost.slowdown_s), cost.lag_s)
    return max(1, round(policies.bounded_s(costs, mtbf_s) / float(np.mean(profile.steps_s))))


def drawn_kills(count: int, mtbf_s: float, rng: np.random.Generator) -> Kills:
    """Return a number of kills at random instants of a time that has them on average.

    Given their number, the failures of a Poisson process are spread evenly over the time.
    """
    length_s = count * mtbf_s
    at_s = np.sort(rng.uniform(0.0, length_s, count))
    return Kills(tuple(at_s.tolist()), length_s)


def predict(
    profile: Profile, interval_steps: int, kills: Kills, rng: np.random.Generator
) -> tuple[Predicted, ...]:
    """Return the lost share of the time by each variant of the model."""
    drawn = np.array([_losses(profile, interval_steps, kills, rng) for _ in range(_DRAWS)])
    medians = np.median(drawn, axis=0)
    low, high = np.percentile(drawn, (5, 95), axis=0)
    return tuple(
        Predicted(variant, float(medians[index]), float(low[index]), float(high[index]))
        for index, variant in enumerate(VARIANTS)
    )


def _losses(
    profile: Profile, interval_steps: int, kills: Kills, rng: np.random.Generator
) -> list[float]:
    """Return the lost share by each of the `VARIANTS` in one draw."""
    steps_s = rng.choice(profile.steps_s, len(profile.steps_s))
    # Steps are skewed. They take their mean, and an undisturbed one is their median.
    mean_s = float(np.mean(steps_s))
    jitter = float(np.median(steps_s)) / mean_s
    picked = rng.integers(len(profile.saves), size=len(profile.saves))
    cost = _mean_cost([profile.saves[index] for index in picked])
    interval_s = interval_steps * mean_s
    found = _interruptions(profile, kills, rng)

    def kept(lag_s: float, slowdown_s: float) -> float:
        costs = _costs(SaveCost(cost.stall_s, lag_s, slowdown_s), interval_s)
        return float(replay.effective_shares(found, [costs], np.array([[interval_s]]))[0, 0])

    segment_s = interval_s + _costs(cost, interval_s).training_s
    shares = [
        kept(cost.lag_s, cost.slowdown_s),
        _alive_share(found) * interval_s / segment_s,
        kept(0.0, cost.slowdown_s),
        kept(cost.lag_s, 0.0),
    ]
    return [1.0 - jitter * share for share in shares]


def _costs(cost: SaveCost, interval_s: float) -> Costs:
    """Return what a checkpoint adds to each interval, and its lag after that.

    A checkpoint begins when the one before is complete. So an interval takes at least as long as a
    stall and a lag. The steps of the lag are slowed down, and that is in the cost already.
    """
    slowdown_s = max(0.0, cost.slowdown_s)
    waiting_s = cost.lag_s - interval_s
    added_s = max(slowdown_s, waiting_s, 0.0)
    return Costs(cost.stall_s + added_s, lag_s=max(0.0, cost.lag_s - added_s))


def _interruptions(profile: Profile, kills: Kills, rng: np.random.Generator) -> Interruptions:
    """Return the kills, each with a way back that was seen. The first start comes before them."""
    recoveries_s = [each.seconds for each in profile.ways_back]
    waits_s = rng.choice(recoveries_s, len(kills.at_s))
    at_s = np.array([0.0, *kills.at_s])
    return Interruptions(at_s, np.array([profile.start_s, *waits_s]), kills.length_s)


def _alive_share(found: Interruptions) -> float:
    """Return the share of the time in which the job trains, whatever comes of it."""
    begins_s = found.at_s + found.wait_s
    ends_s = np.append(found.at_s[1:], found.length_s)
    return float(np.maximum(ends_s - begins_s, 0.0).sum()) / found.length_s


def _mean_cost(saves: Sequence[SaveCost]) -> SaveCost:
    return SaveCost(
        float(np.mean([save.stall_s for save in saves])),
        float(np.mean([save.lag_s for save in saves])),
        float(np.mean([save.slowdown_s for save in saves])),
    )
