"""Jobs that are stopped early, with each policy: their loss at the end, against Young's interval.

Every policy goes through the same failures, so the differences to Young's interval are paired.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from harness.analysis.worth import mean_with_interval
from harness.intervals import policies, stopped
from harness.intervals.convergence import Coci, EndedByFailure, LossCurve
from harness.intervals.costs import Costs
from harness.intervals.policies import Every, Policy
from harness.intervals.stopped import Ends, Job

HOUR_S = 3600.0
LENGTH_S = 24 * HOUR_S
COSTS = Costs(training_s=60.0, restart_s=120.0)
FALLS_H = (2, 8, 24)  # the hours in which the loss falls to 1 / e
STOPS = (0.25, 0.5, 0.75, 1.0)  # of the length
MTBF_S = {True: 6 * HOUR_S, False: 24 * HOUR_S}  # of a job that goes on, and of one that ends
DRAWS = 1000
_SEED = 2026
_STEP_S = 10.0


def policies_of(curve: LossCurve, mtbf_s: float) -> dict[str, Policy]:
    """Return the policies by their names in the table. The first one is compared with."""
    cost_s = COSTS.training_s
    return {
        "Young": Every(policies.young_s(cost_s, mtbf_s)),
        "COCI, minutes": Coci(curve, cost_s, mtbf_s),
        "COCI, hours": Coci(curve, cost_s, mtbf_s, unit_s=HOUR_S),
        "ended by a failure": EndedByFailure(curve, cost_s, mtbf_s, LENGTH_S),
    }


def line(falls_h: int, goes_on: bool, stop: float) -> dict[str, Any]:
    """Return what came of a job with each policy."""
    curve = LossCurve(-1.0 / (falls_h * HOUR_S))
    mtbf_s = MTBF_S[goes_on]
    job = Job(curve, COSTS, mtbf_s, stop * LENGTH_S, goes_on)
    found = {}
    for name, policy in policies_of(curve, mtbf_s).items():
        saves_s = stopped.schedule(policy, LENGTH_S, _STEP_S)
        # Failures do not depend on checkpoints, so equal seeds are equal failures.
        ends = stopped.ends(job, saves_s, DRAWS, np.random.default_rng(_SEED))
        found[name] = (len(saves_s), ends)
    (_, young), *_ = found.values()
    made = [_described(name, count, ends, young) for name, (count, ends) in found.items()]
    return {"falls_h": falls_h, "goes_on": goes_on, "stop": stop, "policies": made}


def _described(name: str, count: int, ends: Ends, young: Ends) -> dict[str, Any]:
    return {
        "policy": name,
        "checkpoints": count,
        "loss": float(ends.loss.mean()),
        "undone": float(ends.undone.mean()),
        "loss_against_young": asdict(mean_with_interval(ends.loss - young.loss)),
    }
