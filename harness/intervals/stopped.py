"""Jobs that are stopped at some instant: the loss that they have come to, with each policy.

A job trains, takes checkpoints when its policy says so, and fails at random instants. Either it
goes on after a failure from its last checkpoint, or its first failure ends it. Two figures judge a
policy:

- the loss of what the job has trained when it is stopped;
- the drop of the loss that failures and checkpoints undid or delayed, each counted where it
  happened. That is what COCI minimizes. It counts a repeated step as lost loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.intervals.convergence import LossCurve
from harness.intervals.costs import Costs
from harness.intervals.policies import Policy

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """A job that is stopped after `stop_s` seconds, whatever it has trained until then."""

    curve: LossCurve
    costs: Costs
    mtbf_s: float
    stop_s: float
    goes_on: bool = True  # after a failure; else its first failure ends it


@dataclass(frozen=True)
class Ends:
    """The end of a job in each draw: its loss at the end, and the drop that was undone."""

    loss: Floats
    undone: Floats


def schedule(policy: Policy, until_s: float, step_s: float) -> Floats:
    """Return after how many seconds of training a policy takes its checkpoints.

    It is asked after each step.
    """
    saves = []
    last_s = 0.0
    for step in range(1, int(until_s / step_s) + 1):
        trained_s = step * step_s
        if policy.checkpoint_now(trained_s - last_s, trained_s):
            saves.append(trained_s)
            last_s = trained_s
    return np.array(saves)


def ends(job: Job, saves_s: Floats, draws: int, rng: np.random.Generator) -> Ends:
    """Return what comes of a job with checkpoints after these seconds of training."""
    pairs = [_one(job, saves_s, rng) for _ in range(draws)]
    loss, undone = np.array(pairs).T
    return Ends(loss, undone)


def _one(job: Job, saves_s: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """Return the loss at the end of one draw, and the drop that was undone or delayed."""
    cost_s = job.costs.training_s
    undone = 0.0
    kept_s = 0.0
    now_s = 0.0
    recovery_s = 0.0
    while True:
        # Failures have no memory. One during a recovery begins it again.
        until_failure_s = float(rng.exponential(job.mtbf_s))
        is_stopped = now_s + until_failure_s >= job.stop_s
        alive_s = min(until_failure_s, job.stop_s - now_s) - recovery_s
        later_s = saves_s[np.searchsorted(saves_s, kept_s, side="right") :]
        trained_s, durable_s, count = _life(kept_s, max(0.0, alive_s), later_s, job.costs)
        undone += _delayed(job.curve, later_s[:count], cost_s)
        if is_stopped:
            return job.curve.at(trained_s), undone
        undone += job.curve.at(durable_s) - job.curve.at(trained_s)
        kept_s = durable_s
        if not job.goes_on:
            return job.curve.at(kept_s), undone
        now_s += until_failure_s
        recovery_s = job.costs.recovery_s


def _life(kept_s: float, alive_s: float, later_s: Floats, costs: Costs) -> tuple[float, float, int]:
    """Return what was trained in a life, what of it is durable, and how many checkpoints it took.

    It begins with `kept_s` seconds of training, and checkpoints follow after `later_s`.
    """
    taken_s = later_s - kept_s + costs.training_s * np.arange(1, len(later_s) + 1)
    count = int(np.searchsorted(taken_s, alive_s, side="right"))
    durable = int(np.searchsorted(taken_s + costs.lag_s, alive_s, side="right"))
    trained_s = kept_s + alive_s - costs.training_s * count
    if count < len(later_s):
        # It may have been stopped within a checkpoint.
        trained_s = min(trained_s, float(later_s[count]))
    return trained_s, float(later_s[durable - 1]) if durable else kept_s, count


def _delayed(curve: LossCurve, saves_s: Floats, cost_s: float) -> float:
    """Return by how much the loss would have dropped during these checkpoints."""
    at_saves = np.exp(curve.slope * saves_s + curve.offset)
    return float(at_saves.sum()) * -float(np.expm1(curve.slope * cost_s))
