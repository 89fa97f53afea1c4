"""The predicted share of lost time, for kills at given instants.

Each of many draws takes a way back for each kill from those that were seen, and resamples lives
with their steps and checkpoints. The percentiles over the draws are the interval of the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from harness.experiments.goodput.profile import Profile, SaveCost
from harness.experiments.goodput.records import VARIANTS, Predicted
from harness.intervals import policies, replay
from harness.intervals.costs import Costs
from harness.intervals.replay import Interruptions

_DRAWS = 400


@dataclass(frozen=True)
class Kills:
    """The instants at which ranks are to be killed, and the end, in seconds from the start."""

    at_s: tuple[float, ...]
    length_s: float


def advised_steps(profile: Profile, mtbf_s: float) -> int:
    """Return the number of steps between two checkpoints that `ckptbench advise` would choose."""
    cost = _mean_cost([save for life in profile.training for save in life.saves])
    training_s = cost.stall_s + max(0.0, cost.slowdown_s)
    interval_s = policies.bounded_s(Costs(training_s, cost.lag_s), mtbf_s)
    return max(1, round(interval_s / profile.step_s))


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
    """Return the lost share by each of the `VARIANTS` in one draw.

    Steps and checkpoints of one life are alike, so whole lives are drawn.
    """
    known = profile.training
    lives = [known[index] for index in rng.integers(len(known), size=len(known))]
    first = _mean_cost([life.first_save for life in lives if life.first_save])
    cost = _mean_cost([save for life in lives for save in life.saves])
    interval_s = interval_steps * fmean(step_s for life in lives for step_s in life.steps_s)
    found = _interruptions(profile, kills, rng)

    def kept(without: Mapping[str, float], undoes: bool = True) -> float:
        costs = _costs(replace(cost, **without), interval_s)
        of_first = _costs(replace(first, **without), interval_s)
        more_s = max(0.0, of_first.training_s - costs.training_s)
        delayed = _with_first_saves(found, interval_s, more_s)
        if not undoes:
            return _alive_share(delayed) * interval_s / (interval_s + costs.training_s)
        shares = replay.effective_shares(delayed, [costs], np.array([[interval_s]]))
        return float(shares[0, 0])

    shares = [
        kept({}),
        kept({}, undoes=False),
        kept({"lag_s": 0.0}),
        kept({"slowdown_s": 0.0}),
    ]
    return [1.0 - share for share in shares]


def _with_first_saves(found: Interruptions, interval_s: float, more_s: float) -> Interruptions:
    """Return the kills where each life that comes to a checkpoint pays more for its first one.

    The replay knows one cost of all checkpoints. So the rest is added to the way back.
    """
    ends_s = np.append(found.at_s[1:], found.length_s)
    saves = ends_s - found.at_s - found.wait_s > interval_s
    return Interruptions(found.at_s, found.wait_s + more_s * saves, found.length_s)


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
        fmean(save.stall_s for save in saves),
        fmean(save.lag_s for save in saves),
        fmean(save.slowdown_s for save in saves),
    )
