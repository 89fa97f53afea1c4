"""Jobs that are stopped early, with each policy: their loss at the end, against Young's interval.

Every policy goes through the same failures, so the differences to Young's interval are paired.

COCI is shown with the true curve of the loss, which no training knows, and with a curve that it
fits to the losses of batches, which scatter around the true one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from harness.analysis.means import mean_with_interval
from harness.intervals import policies, stopped
from harness.intervals.convergence import Coci, EndedByFailure, FittedCoci, LossCurve
from harness.intervals.costs import Costs
from harness.intervals.policies import Every, Policy
from harness.intervals.stopped import Ends, Floats, Job

HOUR_S = 3600.0
LENGTH_S = 24 * HOUR_S
COSTS = Costs(training_s=60.0, restart_s=120.0)
FALLS_H = (2, 8, 24)  # the hours in which the loss falls to 1 / e
STOPS = (0.25, 0.5, 0.75, 1.0)  # of the length
MTBF_S = {True: 6 * HOUR_S, False: 24 * HOUR_S}  # of a job that goes on, and of one that ends
DRAWS = 1000
FITS = 20  # jobs with other losses of batches, of which COCI takes other checkpoints
SCATTER = 0.05  # the standard deviation of a batch's loss, as a share of the true one
STEP_S = 1.0
_SEED = 2026


def policies_of(curve: LossCurve, mtbf_s: float) -> dict[str, list[Policy]]:
    """Return the policies by their names in the table. The first one is compared with.

    The one that fits has a policy for each of several trainings.
    """
    cost_s = COSTS.training_s
    return {
        "Young": [Every(policies.young_s(cost_s, mtbf_s))],
        "COCI, minutes": [Coci(curve, cost_s, mtbf_s)],
        "COCI, hours": [Coci(curve, cost_s, mtbf_s, unit_s=HOUR_S)],
        "ended by a failure": [EndedByFailure(curve, cost_s, mtbf_s, LENGTH_S)],
        "COCI, hours, fitted": [fitted_coci(curve, mtbf_s, seed) for seed in range(FITS)],
    }


def fitted_coci(curve: LossCurve, mtbf_s: float, seed: int) -> Policy:
    """Return COCI in hours, which fits the curve to the losses of batches."""
    return FittedCoci(_batches(curve, seed), COSTS.training_s, mtbf_s, unit_s=HOUR_S)


def _batches(curve: LossCurve, seed: int) -> Callable[[float], float]:
    """Return the loss of the batch at an instant of training. A loss stays above 0."""
    rng = np.random.default_rng(seed)

    def loss_at(trained_s: float) -> float:
        scatter = float(np.exp(rng.normal(0.0, SCATTER)))
        return curve.at(trained_s) * scatter

    return loss_at


def line(falls_h: int, goes_on: bool, stop: float) -> dict[str, Any]:
    """Return what came of a job with each policy."""
    curve = LossCurve(-1.0 / (falls_h * HOUR_S))
    mtbf_s = MTBF_S[goes_on]
    job = Job(curve, COSTS, mtbf_s, stop * LENGTH_S, goes_on)
    found = {}
    for name, trainings in policies_of(curve, mtbf_s).items():
        schedules = [stopped.schedule(policy, LENGTH_S, STEP_S) for policy in trainings]
        found[name] = (schedules, _ends(job, schedules))
    (_, young), *_ = found.values()
    # The intervals hold for all jobs and policies of the tables together.
    comparisons = len(MTBF_S) * len(FALLS_H) * len(STOPS) * (len(found) - 1)
    made = [
        _described(name, schedules, ends, young, comparisons)
        for name, (schedules, ends) in found.items()
    ]
    return {"falls_h": falls_h, "goes_on": goes_on, "stop": stop, "policies": made}


def _ends(job: Job, schedules: Sequence[Floats]) -> Ends:
    """Return what came of a job, of which each schedule has an equal share of the draws."""
    # Failures do not depend on checkpoints, so an equal seed gives equal failures.
    rng = np.random.default_rng(_SEED)
    each = DRAWS // len(schedules)
    parts = [stopped.ends(job, saves_s, each, rng) for saves_s in schedules]
    loss = np.concatenate([part.loss for part in parts])
    undone = np.concatenate([part.undone for part in parts])
    return Ends(loss, undone)


def _described(
    name: str, schedules: Sequence[Floats], ends: Ends, young: Ends, comparisons: int
) -> dict[str, Any]:
    difference = ends.loss - young.loss
    if len(schedules) > 1:
        # Draws of one training share its checkpoints, so the trainings are what varies.
        difference = difference.reshape(len(schedules), -1).mean(axis=1)
    return {
        "policy": name,
        "checkpoints": float(np.mean([len(saves_s) for saves_s in schedules])),
        "loss": float(ends.loss.mean()),
        "undone": float(ends.undone.mean()),
        "loss_against_young": asdict(mean_with_interval(difference, comparisons)),
    }
