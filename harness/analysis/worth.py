"""The worth of each method under real failures, from the costs of stored runs.

Jobs are drawn from the second half of a trace, and the first half gives the failure rate and so the
interval. All methods go through the same draws. So their differences are paired. Their intervals
also hold the spread of the measured costs, and a difference whose interval holds 0 is a tie.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from harness.analysis import advice
from harness.analysis.advice import Advice, Assumed, LargerState, Measured
from harness.analysis.means import mean_with_interval, widened
from harness.analysis.runs import REFERENCE
from harness.analysis.statistics import CONFIDENCE, Estimate, simultaneous
from harness.intervals import failures, replay
from harness.intervals.failures import NodeFailures

FILE = REFERENCE / "worth.json"

STATE_BYTES = 112_742_891_520
"""105 GiB: weights, master weights and Adam's slots of 8 billion parameters (MLPerf Storage)."""

GPUS = (8, 128, 1024, 16_384)
GPUS_A_NODE = 8
RESTART_S = 120.0
DETECT_S = 10.0
_SEED = 2026
_SPARES_PER_NODES = 32  # one spare for so many nodes, and at least one
_ROUNDS = 100  # in which failures that struck a broken node come at other instants


@dataclass(frozen=True)
class Setting:
    """A job of a number of GPUs in a trace, with or without spare nodes."""

    trace: str
    gpus: int
    has_spares: bool

    @property
    def nodes(self) -> int:
        """The nodes that the job needs."""
        return -(-self.gpus // GPUS_A_NODE)

    @property
    def spares(self) -> int:
        """The spare nodes beside them."""
        return max(1, self.nodes // _SPARES_PER_NODES) if self.has_spares else 0

    @property
    def is_extrapolated(self) -> bool:
        """Return whether the trace's system has too few nodes for the job."""
        return self.nodes + self.spares > failures.TRACES[self.trace][1]


@dataclass(frozen=True)
class Worth:
    """The effective share of a method in a setting, for each node that is paid for.

    That includes spares, and leaves nodes under repair out. `gain` is the difference to the first
    method, with its 95 % interval. That holds the spread over the draws, and what the costs of both
    methods may be off. It holds for all jobs and methods together.
    """

    method: str
    share: float
    gain: Estimate

    @property
    def is_tie(self) -> bool:
        """Return whether the interval of the difference holds 0."""
        return self.gain.low <= 0.0 <= self.gain.high


@dataclass(frozen=True)
class ReplayedJob:
    """A job with the worth of every method in it, and what bursts do to the first method's share.

    The first method is the one that all are compared with.
    """

    setting: Setting
    methods: Sequence[Worth]
    bursts: Estimate


@dataclass(frozen=True)
class Replays:
    """Jobs that were replayed with the costs of one run, each in so many draws."""

    run: str
    draws: int
    jobs: Sequence[ReplayedJob]

    def write(self, file: Path = FILE) -> None:
        """Write all of it as JSON."""
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read(file: Path = FILE) -> Replays:
    """Return the stored replays."""
    content = json.loads(file.read_text())
    jobs = []
    for job in content["jobs"]:
        setting = Setting(**job["setting"])
        methods = [
            Worth(each["method"], each["share"], Estimate(**each["gain"]))
            for each in job["methods"]
        ]
        jobs.append(ReplayedJob(setting, methods, Estimate(**job["bursts"])))
    return Replays(content["run"], content["draws"], jobs)


def replayed(found: Sequence[Measured], setting: Setting, draws: int, jobs: int = 1) -> ReplayedJob:
    """Replay one job with all methods.

    It is one of so many jobs, and the intervals hold for all of their differences together.
    """
    bursts = effect_of_bursts(found[0], setting, draws, jobs)
    return ReplayedJob(setting, worths(found, setting, draws, jobs), bursts)


def worths(found: Sequence[Measured], setting: Setting, draws: int, jobs: int = 1) -> list[Worth]:
    """Return what each method is worth in a setting, against the first of them."""
    others = max(1, len(found) - 1)
    learnt, judging = failures.halves(failures.trace(setting.trace))
    advised = _advised(found, setting, learnt)
    rng = np.random.default_rng(_SEED)
    needed = setting.nodes + setting.spares
    drawn = [failures.chosen(judging, needed, rng) for _ in range(draws)]
    by_draw = np.array([_at_all_costs(advised, nodes, setting) for nodes in drawn])
    as_measured = by_draw[:, 0]
    shares, lows, highs = by_draw.mean(axis=0)
    # The intervals of the costs hold one by one, and shall hold for all differences together.
    wider = _quantile(simultaneous(CONFIDENCE, others)) / _quantile(CONFIDENCE)
    below, above = wider * (shares - lows), wider * (highs - shares)
    made = [Worth(advised[0].measured.name, float(shares[0]), Estimate(0.0, 0.0, 0.0))]
    for index in range(1, len(advised)):
        over_draws = mean_with_interval(as_measured[:, index] - as_measured[:, 0], jobs * others)
        # The first method is subtracted, so what it may gain is lost in the difference.
        of_costs = [(below[index], above[index]), (above[0], below[0])]
        name, share = advised[index].measured.name, float(shares[index])
        made.append(Worth(name, share, widened(over_draws, of_costs)))
    return made


def _at_all_costs(
    advised: Sequence[Advice], nodes: NodeFailures, setting: Setting
) -> NDArray[np.float64]:
    """Return the share of each method (columns) with its costs, its dearest, its cheapest (rows).

    The interval between two checkpoints stays that of the measured costs.
    """
    measured = [each.measured for each in advised]
    dearest = [replace(one, costs=one.dearest) for one in measured]
    cheapest = [replace(one, costs=one.cheapest) for one in measured]
    of_each: list[Advice] = []
    for costs in (measured, dearest, cheapest):
        of_each += [replace(each, measured=one) for each, one in zip(advised, costs, strict=True)]
    return _shares_of_paid(of_each, nodes, setting).reshape(3, len(advised))


def _quantile(confidence: float) -> float:
    """Return how many standard deviations from the middle such an interval of a normal ends."""
    return float(stats.norm.ppf(0.5 + 0.5 * confidence))


def effect_of_bursts(one: Measured, setting: Setting, draws: int, jobs: int = 1) -> Estimate:
    """Return by how much the share differs from that under the same failures without bursts.

    There, each failure of the job comes at a random instant to the same node, with the same repair.
    The share is for each node that is paid for. Below 0, bursts hurt.
    """
    learnt, judging = failures.halves(failures.trace(setting.trace))
    advised = _advised([one], setting, learnt)
    rng = np.random.default_rng(_SEED)
    differences = []
    for _ in range(draws):
        nodes = failures.chosen(judging, setting.nodes + setting.spares, rng)
        real = _shares_of_paid(advised, nodes, setting)
        scattered = _shares_of_paid(advised, _scattered(nodes, rng), setting)
        differences.append(real[0] - scattered[0])
    return mean_with_interval(np.array(differences), jobs)


def _advised(found: Sequence[Measured], setting: Setting, learnt: NodeFailures) -> list[Advice]:
    """Return the advice for a state that is divided over the job's ranks."""
    assumed = Assumed(1.0 / learnt.rate_of_job_s(setting.nodes), RESTART_S, DETECT_S)
    larger = LargerState(STATE_BYTES, setting.gpus, setting.nodes)
    return [advice.advise(advice.scaled(one, larger), assumed) for one in found]


def _shares_of_paid(
    advised: Sequence[Advice], nodes: NodeFailures, setting: Setting
) -> NDArray[np.float64]:
    """Return the share of each method on nodes with these failures, for each node paid for."""
    needed_to_paid = setting.nodes * nodes.length_s / nodes.paid_node_s
    return needed_to_paid * _shares_of(advised, nodes, setting)


def _shares_of(
    advised: Sequence[Advice], nodes: NodeFailures, setting: Setting
) -> NDArray[np.float64]:
    """Return the effective share of each method on nodes with these failures."""
    found = replay.interruptions(nodes, setting.nodes)
    costs = [each.measured.costs for each in advised]
    intervals_s = np.array([[each.interval_s] for each in advised])
    return replay.effective_shares(found, costs, intervals_s)[:, 0]


def _scattered(found: NodeFailures, rng: np.random.Generator) -> NodeFailures:
    """Return the same failures at random instants, each with its node and its repair.

    A failure at an instant at which its node is under repair strikes nobody. Those of the trace are
    left out, and any other gets an instant at which its node works. So bursts are compared with as
    many failures that count.
    """
    found = _only(found, failures.strikes_working(found))
    at_s = rng.uniform(0.0, found.length_s, len(found.at_s))
    for _ in range(_ROUNDS):
        scattered = _at(found, at_s)
        missed = ~failures.strikes_working(scattered)
        if not missed.any():
            break
        at_s = scattered.at_s.copy()
        at_s[missed] = rng.uniform(0.0, found.length_s, int(missed.sum()))
        found = scattered
    return scattered


def _only(found: NodeFailures, chosen: NDArray[np.bool_]) -> NodeFailures:
    """Return some of the failures."""
    return replace(
        found,
        at_s=found.at_s[chosen],
        node=found.node[chosen],
        repair_s=found.repair_s[chosen],
        interrupts=found.interrupts[chosen],
        of_process=None if found.of_process is None else found.of_process[chosen],
    )


def _at(found: NodeFailures, at_s: NDArray[np.float64]) -> NodeFailures:
    """Return the failures at other instants, in the order of time."""
    order = np.argsort(at_s, kind="stable")
    return replace(
        found,
        at_s=at_s[order],
        node=found.node[order],
        repair_s=found.repair_s[order],
        interrupts=found.interrupts[order],
        of_process=None if found.of_process is None else found.of_process[order],
    )
