"""The best interval of each method of a run, and the share of the time that then trains.

The costs are those that the run measured. What it did not measure is assumed, and the advice says
so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.analysis.row import COVERAGE, Row
from harness.analysis.statistics import Estimate
from harness.analysis.text import ranks_in_words, size
from harness.intervals import expected, policies
from harness.intervals.costs import Costs
from harness.intervals.expected import Shares
from harness.intervals.policies import CheckFreq

POLICIES = (*policies.FORMULAS, "checkfreq")
"""The policies that choose an interval from costs alone, the default first."""

_ASSUMED = ("restart_s", "detect_s")


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
    world: int = 1
    sharded: bool = False  # every rank writes a part of the state
    asynchronous: bool = False
    unmeasured: tuple[str, ...] = ()  # names of costs
    is_extrapolated: bool = False
    is_partial: bool = False  # a checkpoint does not hold the whole state
    has_spread: bool = True  # `cheapest` and `dearest` come from several samples
    stall_s: float = 0.0  # the part of `training_s` that comes before an asynchronous write

    @property
    def sources(self) -> dict[str, str]:
        """The origin of each cost: measured, extrapolated, assumed or unknown."""
        origins = {}
        for name in asdict(self.costs):
            origins[name] = "extrapolated" if self.is_extrapolated else "measured"
            if name in self.unmeasured:
                origins[name] = "unknown"
            elif name in _ASSUMED:
                origins[name] = "assumed"
        return origins

    @property
    def rank_bytes(self) -> float:
        """The bytes that one rank wrote: a part of the state, or all of it."""
        return (self.state_bytes or 0) / (self.world if self.sharded else 1)


@dataclass(frozen=True)
class Assumed:
    """The values that a run does not measure: the failures of the job, and a restart's time."""

    mtbf_s: float
    restart_s: float
    detect_s: float
    budget: float | None = None
    policy: str = POLICIES[0]

    @property
    def allowed_share(self) -> float | None:
        """The budget, which is that of its paper for CheckFreq where none is given."""
        if self.budget is None and self.policy == "checkfreq":
            return policies.CHECKFREQ_BUDGET
        return self.budget


@dataclass(frozen=True)
class LargerState:
    """A state that is divided evenly over all ranks of a job, each of which saves its part.

    A bandwidth of 0 is unknown.
    """

    state_bytes: float
    ranks: int
    nodes: int
    node_bytes_per_s: float = 0.0
    storage_bytes_per_s: float = 0.0

    @property
    def rank_bytes(self) -> float:
        """The bytes of each rank's part."""
        return self.state_bytes / self.ranks

    @property
    def node_bytes(self) -> float:
        """The bytes that all ranks of a node write together."""
        return self.state_bytes / self.nodes

    @property
    def given_s(self) -> float:
        """The seconds that the given bandwidths need for the state; 0 where none is known."""
        node_s = self.node_bytes / self.node_bytes_per_s if self.node_bytes_per_s else 0.0
        whole_bytes_per_s = self.storage_bytes_per_s
        return max(node_s, self.state_bytes / whole_bytes_per_s if whole_bytes_per_s else 0.0)

    @property
    def has_bandwidth(self) -> bool:
        """Return whether a bandwidth is known."""
        return bool(self.node_bytes_per_s or self.storage_bytes_per_s)


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
    least_s: float  # the shortest interval that is allowed

    @property
    def steps(self) -> int | None:
        """The interval in whole steps that is allowed; None where no step was measured."""
        step_s = self.measured.step_s
        if not step_s:
            return None
        return max(1, round(self.interval_s / step_s), math.ceil(self.least_s / step_s - _ROUNDING))

    def to_json(self) -> dict[str, Any]:
        """Return the advice as flat JSON values."""
        return {
            "method": self.measured.name,
            "interval_s": self.interval_s,
            "interval_steps": self.steps,
            "effective": self.shares.effective,
            "effective_low": self.low if self.measured.has_spread else None,
            "effective_high": self.high if self.measured.has_spread else None,
            **{f"lost_{part}": getattr(self.shares, part) for part in expected.PARTS},
            "largest_loss": self.shares.largest_loss,
            "flat_from_s": self.flat_from_s,
            "flat_to_s": self.flat_to_s,
            **{f"cost_{name}": value for name, value in asdict(self.measured.costs).items()},
            **{f"source_{name}": origin for name, origin in self.measured.sources.items()},
            "measured_ranks": self.measured.world,
            "notes": list(self.measured.notes),
        }


def measured(rows: Iterable[Row], assumed: Assumed) -> list[Measured]:
    """Return the costs of every method whose rows of one state and world are complete.

    A job has one world. So those of the run's largest world count, if it has every method.
    """
    usable = [
        row
        for row in rows
        if row.status == "ok" and row.method and row.experiment in ("cost", "train")
    ]
    chosen, remark = _of_largest_world(usable)
    # Where checkpoints come very often, the loop waits for the one before. So these come last.
    chosen = sorted(chosen, key=lambda row: -row.every)
    by_case: dict[tuple[str, str, str, str, str, str, int, str], dict[str, Row]] = {}
    for row in chosen:
        state = (row.workload, row.preset, row.precision, row.world, row.strategy)
        key = (row.framework, row.method, row.arm, *state)
        by_case.setdefault(key, {}).setdefault(row.experiment, row)
    several = len({key[0] for key in by_case}) > 1
    states = {key[3:] for key in by_case}
    found = []
    for key, experiments in by_case.items():
        framework, method, arm, workload, preset, precision, world, strategy = key
        name = f"{framework} {method}" if several else method
        if arm:
            name += f", side {arm}"
        if len(states) > 1:
            name += f", {workload} {preset} {precision}, {ranks_in_words([world])}"
            name += f" with {strategy}" if strategy else ""
        one = _measured(name, experiments.get("cost"), experiments.get("train"), assumed)
        if one is not None:
            found.append(replace(one, notes=(*one.notes, *remark)))
    return found


def _of_largest_world(rows: Sequence[Row]) -> tuple[Sequence[Row], tuple[str, ...]]:
    """Return the rows of the largest world, and a note that says so where there are others.

    All rows are returned where a method was not measured in the largest world.
    """
    worlds = {row.world for row in rows}
    if len(worlds) < 2:
        return rows, ()
    largest = [row for row in rows if row.world == max(worlds)]
    if _subjects(largest) != _subjects(rows):
        return rows, ()
    return largest, (f"measured on {max(worlds)} ranks, the largest world of the run",)


def _subjects(rows: Sequence[Row]) -> set[tuple[str, ...]]:
    return {
        (
            row.framework,
            row.method,
            row.arm,
            row.workload,
            row.preset,
            row.precision,
            row.experiment,
        )
        for row in rows
    }


def scaled(one: Measured, larger: LargerState) -> Measured:
    """Return the costs of a method for a state that is divided over all ranks of a job.

    All costs grow with the bytes of a rank. With a bandwidth, the write and the restore take as
    long as through the slower of a node and of the whole storage. A synchronous method writes in
    its stall. So its cost to training is at least that time.
    """
    factor = larger.rank_bytes / one.rank_bytes

    def through_storage_s(measured_s: float) -> float:
        # Without a node's bandwidth, each rank is supposed to write as fast as a measured one.
        own_s = 0.0 if larger.node_bytes_per_s else factor * measured_s
        return max(own_s, larger.given_s)

    def of(costs: Costs) -> Costs:
        training_s = factor * costs.training_s
        # Training is slower while the bytes are written. So a part of that time has passed when
        # the lag begins.
        write_ends_s = factor * one.stall_s + larger.given_s
        lag_s = max(0.0, write_ends_s - training_s)
        if not larger.node_bytes_per_s:
            lag_s = max(lag_s, factor * costs.lag_s)
        if not one.asynchronous:
            training_s = max(training_s, through_storage_s(costs.training_s))
            # A given bandwidth is in the stall already, so it may not count again in the lag.
            lag_s = 0.0 if larger.has_bandwidth else factor * costs.lag_s
        restore_s = through_storage_s(costs.restore_s)
        return replace(costs, training_s=training_s, lag_s=lag_s, restore_s=restore_s)

    notes = [
        f"extrapolated from {size(one.state_bytes or 0)} of state to {size(larger.state_bytes)}, "
        f"divided evenly over {larger.ranks} ranks on {larger.nodes} nodes"
    ]
    if factor < 1.0:
        notes.append(
            f"a rank's part of {size(round(larger.rank_bytes))} is smaller than the "
            f"{size(round(one.rank_bytes))} that were measured, so what every save costs, such as "
            "opening files, counts for too little"
        )
    durable_s = factor * (one.costs.training_s + one.costs.lag_s)
    given_s = through_storage_s(one.costs.training_s + one.costs.lag_s)
    is_measured = "lag_s" not in one.unmeasured
    is_replaced = one.asynchronous and larger.has_bandwidth and is_measured
    if is_replaced and durable_s > _MUCH_SLOWER * given_s:
        notes.append(
            f"with the given bandwidth a rank's part is written in {given_s:.3g} s, and at the "
            f"measured speed in {durable_s:.3g} s, so the bandwidth helps only if the disk was "
            "what limited this method"
        )
    # With a bandwidth, these two are known although nobody has measured them.
    given = ("lag_s", "restore_s") if larger.has_bandwidth else ()
    kept = [note for note in one.notes if note not in [_UNMEASURED[name] for name in given]]
    return replace(
        one,
        costs=of(one.costs),
        cheapest=of(one.cheapest),
        dearest=of(one.dearest),
        step_s=None,  # that of a larger model is not known
        notes=(*kept, *notes),
        unmeasured=tuple(name for name in one.unmeasured if name not in given),
        is_extrapolated=True,
    )


def advise(one: Measured, assumed: Assumed) -> Advice:
    """Return the interval of a method by the assumed policy, under failures at random instants."""
    return at_interval(one, assumed, _interval_s(one.costs, assumed))


def at_interval(one: Measured, assumed: Assumed, interval_s: float) -> Advice:
    """Return what becomes of the time with an interval, or with the shortest that is allowed."""
    least_s = shortest_s(one, assumed)
    best_s = max(interval_s, least_s)
    low_s, high_s = expected.flat_from_to(one.costs, best_s, assumed.mtbf_s)
    return Advice(
        measured=one,
        interval_s=best_s,
        shares=expected.shares(one.costs, best_s, assumed.mtbf_s),
        low=expected.effective_share(one.dearest, best_s, assumed.mtbf_s),
        high=expected.effective_share(one.cheapest, best_s, assumed.mtbf_s),
        flat_from_s=max(low_s, least_s),
        flat_to_s=high_s,
        least_s=least_s,
    )


def shortest_s(one: Measured, assumed: Assumed) -> float:
    """Return the shortest interval that is allowed.

    A checkpoint is durable before the next one begins, and nobody saves within a step. With a
    budget, checkpoints may cost no more than it without failures.
    """
    budget = assumed.allowed_share
    least_s = one.costs.training_s / budget if budget else 0.0
    return max(least_s, one.costs.lag_s, one.step_s or 0.0, _LEAST_S)


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
    """Return the interval of the policy. `shortest_s` has the bounds that hold for all of them."""
    if assumed.policy == "checkfreq":
        return CheckFreq(costs, assumed.budget or policies.CHECKFREQ_BUDGET).interval_s
    return policies.FORMULAS[assumed.policy](costs.training_s, assumed.mtbf_s)


_LEAST_S = 1e-3  # a checkpoint that costs nothing is taken as often as anything is
_ROUNDING = 1e-9
_MUCH_SLOWER = 2.0  # than the given bandwidth, which is worth a note
_WAITS = 0.1  # a part of what a checkpoint costs that is worth a note
_UNMEASURED = {
    "lag_s": "the lag until durable was not measured, and counts as 0",
    "restore_s": "the restore was not measured, and counts as 0",
}
_WHERE_LOADED = {
    "warm": "its restore was measured with files in the page cache, as on the same node",
    "mixed": "some of its restores were measured with files in the page cache",
    "memory": "its restore was measured from the node's memory, which dies with the node",
}


def _measured(name: str, cost: Row | None, train: Row | None, assumed: Assumed) -> Measured | None:
    """Return a method's costs from its rows; None where neither says what a checkpoint costs."""
    notes = []
    unmeasured = []
    overhead = _estimate(train, "overhead_s")
    # A checkpoint costs its stall at least. Steps that vary may hide that.
    stall = _estimate(train, "stall_s") or _estimate(cost, "stall_s")
    if overhead is None and stall is None:
        return None
    if overhead is None:
        notes.append("the slowdown of training was not measured, so a checkpoint costs its stall")
    elif overhead.low <= 0.0:
        notes.append("what a checkpoint adds to training was within the noise of the steps")
    durable = _estimate(cost, "durable_s")
    load = _estimate(cost, "load_s")
    for cost_name, estimate in (("lag_s", durable), ("restore_s", load)):
        if estimate is None:
            unmeasured.append(cost_name)
            notes.append(_UNMEASURED[cost_name])
    notes += _waits(train, overhead) + _of_other_loads(cost) + _doubts(cost) + _doubts(train)
    covers = next((row.covers for row in (cost, train) if row and row.covers), "full")
    if covers != COVERAGE[-1]:
        notes.append(f"its checkpoints hold {covers} alone, so training cannot go on exactly")
    known = [each for each in (overhead, stall, durable, load) if each is not None]
    has_spread = not any(each.single for each in known)
    if not has_spread:
        notes.append("some of its costs are of a single sample, so how far they vary is not known")

    def costs(end: str) -> Costs:
        training_s = max(_end(overhead, end), _end(stall, end), 0.0)
        return Costs(
            training_s=training_s,
            # The slowdown comes while the checkpoint is written, so that time is over then.
            lag_s=max(0.0, _end(durable, end) - training_s),
            restore_s=max(0.0, _end(load, end)),
            restart_s=assumed.restart_s,
            detect_s=assumed.detect_s,
        )

    step = _estimate(train, "step_s")
    row = train or cost
    return Measured(
        name,
        costs("value"),
        costs("low"),
        costs("high"),
        step.value if step else None,
        getattr(row, "state_bytes", None),
        tuple(notes),
        row.world if row else 1,
        row.sharded if row else False,
        row.asynchronous if row else False,
        tuple(unmeasured),
        is_partial=covers != COVERAGE[-1],
        has_spread=has_spread,
        stall_s=_end(stall, "value"),
    )


def _waits(train: Row | None, overhead: Estimate | None) -> list[str]:
    """Return a note where much of the cost was a wait, which a longer interval does not have."""
    waits = _estimate(train, "back_pressure_s")
    if train is None or overhead is None or waits is None:
        return []
    # An overhead within the noise is no measure of the waits in it.
    if overhead.low <= 0.0 or waits.value < _WAITS * overhead.value:
        return []
    return [
        f"of the {overhead.value:.2g} s that a checkpoint cost every {train.every} steps, "
        f"{waits.value:.2g} s were a wait for the one before; at a longer interval it costs less"
    ]


def _of_other_loads(cost: Row | None) -> list[str]:
    """Return a note where the files of a load were not on the disk alone."""
    words = _WHERE_LOADED.get(str(getattr(cost, "load_cache", "")))
    return [words] if words else []


def _doubts(row: Row | None) -> list[str]:
    """Return a note for each mark of a row, whose numbers the advice takes all the same."""
    if row is None:
        return []
    return [f"what '{row.experiment}' measured is in doubt, because {mark}" for mark in row.marks]


def _estimate(row: Row | None, name: str) -> Estimate | None:
    value = getattr(row, name, None)
    return value if isinstance(value, Estimate) else None


def _end(estimate: Estimate | None, end: str) -> float:
    """Return the value, or an end of the interval; 0 where nothing was measured."""
    return 0.0 if estimate is None else float(getattr(estimate, end))
