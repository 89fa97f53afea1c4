"""The best interval of each method of a run, and the share of the time that then trains.

The costs are those that the run measured. What it did not measure is assumed, and the advice says
so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.analysis.row import Row
from harness.analysis.statistics import Estimate
from harness.analysis.text import ranks_in_words
from harness.intervals import expected, policies
from harness.intervals.costs import Costs
from harness.intervals.expected import Shares
from harness.intervals.policies import CheckFreq

POLICIES = (*policies.FORMULAS, "checkfreq")
"""The policies that choose an interval from costs alone, the default first."""


@dataclass(frozen=True)
class Measured:
    """The costs of a method as a run measured them: the middle, and the ends of their intervals.

    `notes` say what was not measured, and what is in doubt.
    """

    name: str
    costs: Costs
    cheapest: Costs
    dearest: Costs
    step_s: float | None
    state_bytes: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Assumed:
    """The values that a run does not measure: the failures of the job, and a restart's time."""

    mtbf_s: float
    restart_s: float
    detect_s: float
    budget: float | None = None
    policy: str = POLICIES[0]


@dataclass(frozen=True)
class Advice:
    """The interval of a method, and what becomes of the time there."""

    measured: Measured
    interval_s: float
    shares: Shares
    low: float  # the effective share where the costs are at the far ends of their intervals
    high: float
    flat_from_s: float
    flat_to_s: float

    @property
    def steps(self) -> int | None:
        """The interval in steps; None where no step was measured."""
        step_s = self.measured.step_s
        return max(1, round(self.interval_s / step_s)) if step_s else None

    def to_json(self) -> dict[str, Any]:
        """Return the advice as flat JSON values."""
        return {
            "method": self.measured.name,
            "interval_s": self.interval_s,
            "interval_steps": self.steps,
            "effective": self.shares.effective,
            "effective_low": self.low,
            "effective_high": self.high,
            **{f"lost_{part}": getattr(self.shares, part) for part in expected.PARTS},
            "largest_loss": self.shares.largest_loss,
            "flat_from_s": self.flat_from_s,
            "flat_to_s": self.flat_to_s,
            **{f"cost_{name}": value for name, value in asdict(self.measured.costs).items()},
            "notes": list(self.measured.notes),
        }


def measured(rows: Iterable[Row], assumed: Assumed) -> list[Measured]:
    """Return the costs of every method whose rows of one state and world are complete."""
    by_case: dict[tuple[str, str, str, str, str, int, str], dict[str, Row]] = {}
    for row in rows:
        if row.status != "ok" or not row.method:
            continue
        if row.experiment in ("cost", "train"):
            state = (row.workload, row.preset, row.precision, row.world, row.strategy)
            key = (row.framework, row.method, *state)
            by_case.setdefault(key, {}).setdefault(row.experiment, row)
    several = len({key[0] for key in by_case}) > 1
    states = {key[2:] for key in by_case}
    found = []
    for key, experiments in by_case.items():
        framework, method, workload, preset, precision, world, _ = key
        name = f"{framework} {method}" if several else method
        if len(states) > 1:
            name += f", {workload} {preset} {precision}, {ranks_in_words([world])}"
        one = _measured(name, experiments.get("cost"), experiments.get("train"), assumed)
        if one is not None:
            found.append(one)
    return found


def scaled(
    one: Measured, factor: float, node_bytes_per_s: float, storage_bytes_per_s: float, nodes: int
) -> Measured:
    """Return the costs for a state that is `factor` times as large, divided over nodes.

    The stall grows with the bytes of a rank. The lag is that of the slower of the node's and the
    whole storage's bandwidth, where they are given (0 where not), and the restore likewise.
    """

    def of(costs: Costs) -> Costs:
        stored_bytes = factor * (one.state_bytes or 0)
        lags_s = [factor * costs.lag_s]
        if node_bytes_per_s:
            lags_s = [stored_bytes / nodes / node_bytes_per_s]
        if storage_bytes_per_s:
            lags_s.append(stored_bytes / storage_bytes_per_s)
        by_bandwidth = bool(node_bytes_per_s or storage_bytes_per_s)
        return replace(
            costs,
            training_s=factor * costs.training_s,
            lag_s=max(lags_s),
            restore_s=max(lags_s) if by_bandwidth else factor * costs.restore_s,
        )

    note = f"extrapolated from the measured state to {factor:.3g} times its bytes"
    return replace(
        one,
        costs=of(one.costs),
        cheapest=of(one.cheapest),
        dearest=of(one.dearest),
        notes=(*one.notes, note),
    )


def advise(one: Measured, assumed: Assumed) -> Advice:
    """Return the interval of a method by the assumed policy, under failures at random instants."""
    return at_interval(one, assumed, _interval_s(one.costs, assumed))


def at_interval(one: Measured, assumed: Assumed, interval_s: float) -> Advice:
    """Return what becomes of the time with an interval. Nobody saves within a step."""
    best_s = max(interval_s, one.step_s or 0.0, _LEAST_S)
    low_s, high_s = expected.flat_from_to(one.costs, best_s, assumed.mtbf_s)
    return Advice(
        measured=one,
        interval_s=best_s,
        shares=expected.shares(one.costs, best_s, assumed.mtbf_s),
        low=expected.effective_share(one.dearest, best_s, assumed.mtbf_s),
        high=expected.effective_share(one.cheapest, best_s, assumed.mtbf_s),
        flat_from_s=max(low_s, one.step_s or 0.0),
        flat_to_s=high_s,
    )


def job_mtbf_s(nodes: int, rate_per_node_s: float, rate_of_job_s: float = 0.0) -> float:
    """Return the mean time between two failures of a job: the rates of all its parts add up."""
    rate = nodes * rate_per_node_s + rate_of_job_s
    return math.inf if rate == 0.0 else 1.0 / rate


def curve(one: Measured, assumed: Assumed, intervals_s: Sequence[float]) -> list[float]:
    """Return the effective share of a method at each interval."""
    return [
        expected.effective_share(one.costs, interval_s, assumed.mtbf_s)
        for interval_s in intervals_s
    ]


def _interval_s(costs: Costs, assumed: Assumed) -> float:
    if assumed.policy == "checkfreq":
        return CheckFreq(costs, assumed.budget or policies.CHECKFREQ_BUDGET).interval_s
    return policies.bounded_s(costs, assumed.mtbf_s, assumed.budget, assumed.policy)


_LEAST_S = 1e-3  # a checkpoint that costs nothing is taken as often as anything is


def _measured(name: str, cost: Row | None, train: Row | None, assumed: Assumed) -> Measured | None:
    """Return a method's costs from its rows; None where neither says what a checkpoint costs."""
    notes = []
    overhead = _estimate(train, "overhead_s")
    stall = _estimate(cost, "stall_s")
    training = overhead or stall
    if training is None:
        return None
    if overhead is None:
        notes.append("the slowdown of training was not measured, so a checkpoint costs its stall")
    durable = _estimate(cost, "durable_s")
    load = _estimate(cost, "load_s")
    if durable is None or stall is None:
        notes.append("the lag until durable was not measured, and counts as 0")
    if load is None:
        notes.append("the restore was not measured, and counts as 0")
    notes += _doubts(cost) + _doubts(train)

    def costs(end: str) -> Costs:
        lag_s = _end(durable, end) - _end(stall, end) if durable and stall else 0.0
        return Costs(
            training_s=max(0.0, _end(training, end)),
            lag_s=max(0.0, lag_s),
            restore_s=max(0.0, _end(load, end)) if load else 0.0,
            restart_s=assumed.restart_s,
            detect_s=assumed.detect_s,
        )

    step = _estimate(train, "step_s")
    size = getattr(train or cost, "state_bytes", None)
    return Measured(
        name,
        costs("value"),
        costs("low"),
        costs("high"),
        step.value if step else None,
        size,
        tuple(notes),
    )


def _doubts(row: Row | None) -> list[str]:
    """Return a note for each mark of a row, whose numbers the advice takes all the same."""
    if row is None:
        return []
    return [f"what '{row.experiment}' measured is in doubt, because {mark}" for mark in row.marks]


def _estimate(row: Row | None, name: str) -> Estimate | None:
    value = getattr(row, name, None)
    return value if isinstance(value, Estimate) else None


def _end(estimate: Estimate, end: str) -> float:
    return float(getattr(estimate, end))
