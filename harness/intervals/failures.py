"""Failures of nodes: drawn from distributions, or real ones from traces.

The traces lie in `workloads/failures/`. Their first lines say their sources. Their node numbers
follow the first failure of each node, and nodes that never failed have none. So a job draws its
nodes at random from the whole system, and begins at a random instant.
"""

from __future__ import annotations

import csv
import math
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FOLDER = Path(__file__).resolve().parents[2] / "workloads" / "failures"
S_AN_HOUR = 3600.0
S_A_DAY = 86_400.0
NODE_FAILURES_PER_S = 4.0 / 1000.0 / S_A_DAY
"""A default: 4 failures in 1,000 node-days.

The traces have 3.2 to 3.6 that interrupt a job, and Llama 3 reports 3.8.
"""
DRAWN_S = 174 * S_A_DAY
"""The time that draws at random instants last: as long as the half of `gpu-400` that judges."""

# of the logarithm, so that the median is a sixth of the mean, as of the 400 GPU servers
_REPAIR_DEVIATION = 1.9
# Such rows take a node away, but interrupt no job.
_QUIET_CLASSES = frozenset({"stress test failure", "training task troubleshooting"})


@dataclass(frozen=True)
class NodeFailures:
    """Failures of `nodes` nodes over `length_s` seconds, in the order of time.

    The arrays have one element for each failure: its instant, its node, the seconds of its repair,
    and whether it interrupts a job that runs there. `under_repair` has the nodes that are broken at
    the start, with the instants at which they come back. `of_process` tells which failures are the
    death of a process, whose node stays with the job. None stands for none of them.
    """

    nodes: int
    length_s: float
    at_s: NDArray[np.float64]
    node: NDArray[np.int64]
    repair_s: NDArray[np.float64]
    interrupts: NDArray[np.bool_]
    under_repair: Mapping[int, float] = field(default_factory=dict)
    of_process: NDArray[np.bool_] | None = None

    @property
    def kills_process(self) -> NDArray[np.bool_]:
        """A mask of the failures that are the death of a process alone."""
        return np.zeros(len(self.at_s), dtype=bool) if self.of_process is None else self.of_process

    @property
    def healthy(self) -> list[int]:
        """The nodes that are not under repair at the start."""
        return [node for node in range(self.nodes) if node not in self.under_repair]

    def events(self) -> Iterator[tuple[float, int, float, bool, bool]]:
        """Yield instant, node, repair, and whether it interrupts, and kills a process alone."""
        yield from zip(
            self.at_s.tolist(),
            self.node.tolist(),
            self.repair_s.tolist(),
            self.interrupts.tolist(),
            self.kills_process.tolist(),
            strict=True,
        )

    def require_room(self, needed: int) -> None:
        """Raise ValueError unless there are as many nodes as a job needs."""
        if not 1 <= needed <= self.nodes:
            raise ValueError(
                f"the job needs {needed} nodes, and the failures are of {self.nodes}; "
                f"give 1 to {self.nodes}"
            )

    def repairs(self) -> list[tuple[float, int]]:
        """Return when which node comes back that is broken at the start, the first one first."""
        return sorted((at_s, node) for node, at_s in self.under_repair.items())

    @property
    def rate_per_node_s(self) -> float:
        """The failures that interrupt a job, for each node and second."""
        return float(self.interrupts.sum()) / (self.nodes * self.length_s)

    def rate_of_job_s(self, nodes: int) -> float:
        """Return how often in a second a job is interrupted that takes some of the nodes at random.

        Failures of one instant interrupt it once. A job with more nodes than there are meets copies
        of the failures at other instants.
        """
        if nodes > self.nodes:
            return nodes / self.nodes * self.rate_of_job_s(self.nodes)
        struck = np.stack([self.at_s[self.interrupts], self.node[self.interrupts]])
        # A node that fails twice at one instant is one node.
        instants = np.unique(struck, axis=1)[0]
        _, together = np.unique(instants, return_counts=True)
        # The chance that none of `count` struck nodes is among those of the job.
        spared = {0: 1.0}
        for count in range(1, int(together.max(initial=0)) + 1):
            others = self.nodes - count + 1
            spared[count] = spared[count - 1] * max(0, others - nodes) / others
        return sum(1.0 - spared[int(count)] for count in together) / self.length_s

    @property
    def paid_node_s(self) -> float:
        """The seconds of all nodes together that are paid for.

        A broken node is not, from its failure until its repair. Other nodes are, also while a job
        waits for one.
        """
        repaired_s = dict(self.under_repair)
        paid_s = self.nodes * self.length_s
        paid_s -= sum(min(until_s, self.length_s) for until_s in repaired_s.values())
        for at_s, node, repair_s, interrupts, kills_process in self.events():
            is_broken = at_s < repaired_s.get(node, 0.0)
            if interrupts and not kills_process and not is_broken:
                repaired_s[node] = at_s + repair_s
                paid_s -= min(repair_s, self.length_s - at_s)
        return paid_s


TRACES = {
    "gpu-400": ("gpu-400-servers-2024.csv", 400, 348 * 24.0),
    "lanl-18": ("lanl-system-18.csv", 1024, 29_328.0),
    "lanl-20": ("lanl-system-20.csv", 512, 32_640.0),
}
"""The file of each trace, the nodes of its system, and the hours that it lasts."""


def trace(name: str, software_kills_process: bool = False) -> NodeFailures:
    """Return a real trace by its name in `TRACES`. Raises ValueError for an unknown name.

    Every row has a repair, so it takes its node away. The traces do not say whether the memory of
    the node outlived a failure of software. With `software_kills_process` it did, and the processes
    start again on the node at once. That is the best case for checkpoints in memory.
    """
    if name not in TRACES:
        raise ValueError(f"unknown trace '{name}'; choose one of {', '.join(TRACES)}")
    file, nodes, hours = TRACES[name]
    with (_FOLDER / file).open(newline="") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    # LANL's traces have a cause, and the other one has a class and a level above it.
    kinds = [row.get("level") or row.get("cause") or "" for row in rows]
    is_software = np.array([kind.startswith("Software") for kind in kinds])
    classes = [(row.get("class") or row.get("cause") or "").lower() for row in rows]
    return NodeFailures(
        nodes=nodes,
        length_s=hours * S_AN_HOUR,
        at_s=np.array([float(row["start_h"]) for row in rows]) * S_AN_HOUR,
        node=np.array([int(row["node"]) for row in rows]),
        repair_s=np.array([float(row["repair_h"]) for row in rows]) * S_AN_HOUR,
        interrupts=np.array([words not in _QUIET_CLASSES for words in classes]),
        of_process=is_software if software_kills_process else None,
    )


def halves(failures: NodeFailures) -> tuple[NodeFailures, NodeFailures]:
    """Return the first and the second half of the time, so that one can judge the other."""
    middle_s = 0.5 * failures.length_s
    first = failures.at_s < middle_s
    return _part(failures, first, 0.0, middle_s), _part(failures, ~first, middle_s, middle_s)


def _part(
    failures: NodeFailures, inside: NDArray[np.bool_], start_s: float, length_s: float
) -> NodeFailures:
    return NodeFailures(
        failures.nodes,
        length_s,
        failures.at_s[inside] - start_s,
        failures.node[inside],
        failures.repair_s[inside],
        failures.interrupts[inside],
        of_process=failures.kills_process[inside],
    )


def drawn(
    nodes: int,
    length_s: float,
    rng: np.random.Generator,
    rate_per_node_s: float = NODE_FAILURES_PER_S,
    shape: float = 1.0,
    repair_median_s: float = 20.4 * S_AN_HOUR,
    repair_deviation: float = _REPAIR_DEVIATION,
) -> NodeFailures:
    """Return failures drawn from a distribution: Weibull gaps of each node, lognormal repairs.

    A shape of 1 is exponential. The default repairs have the median and nearly the mean of the 400
    GPU servers' trace, 20 and 133 hours. A node's first gap begins at a random instant of its life,
    for which its failures are drawn from some mean gaps before.
    """
    if shape == 1.0:
        count = rng.poisson(nodes * length_s * rate_per_node_s)
        at_s = np.sort(rng.uniform(0.0, length_s, count))
        node = rng.integers(nodes, size=count)
    else:
        mean_s = 1.0 / rate_per_node_s
        scale_s = mean_s / math.gamma(1.0 + 1.0 / shape)
        at_s, node = _renewals(nodes, length_s, rng, shape, scale_s, mean_s)
    repair_s = repair_median_s * rng.lognormal(0.0, repair_deviation, len(at_s))
    return NodeFailures(nodes, length_s, at_s, node, repair_s, np.ones(len(at_s), dtype=bool))


def chosen(failures: NodeFailures, nodes: int, rng: np.random.Generator) -> NodeFailures:
    """Return the failures of a random choice of nodes, from a random instant on.

    The trace is a ring, so that every instant has as much after it. A node whose repair goes on at
    that instant is under repair at the start, unless its failure interrupts nothing. Nodes beyond
    those of the trace are superposed copies of it at other instants, which lose its bursts. Such a
    result is extrapolated. The copies take their random numbers from a child of `rng`, so the draws
    that follow are the same with any number of copies.
    """
    if nodes < 1:
        raise ValueError(f"a choice of {nodes} nodes is empty; give 1 or more")
    parts = [_one_copy(failures, min(failures.nodes, nodes), 0, rng)]
    (child,) = rng.spawn(1)
    for first_node in range(failures.nodes, nodes, failures.nodes):
        wanted = min(failures.nodes, nodes - first_node)
        parts.append(_one_copy(failures, wanted, first_node, child))
    at_s = np.concatenate([part.at_s for part in parts])
    node = np.concatenate([part.node for part in parts])
    repair_s = np.concatenate([part.repair_s for part in parts])
    interrupts = np.concatenate([part.interrupts for part in parts])
    of_process = np.concatenate([part.kills_process for part in parts])
    under_repair = dict(ChainMap(*(dict(part.under_repair) for part in parts)))
    order = np.argsort(at_s, kind="stable")
    return NodeFailures(
        nodes,
        failures.length_s,
        at_s[order],
        node[order],
        repair_s[order],
        interrupts[order],
        under_repair,
        of_process[order],
    )


def _one_copy(
    failures: NodeFailures, wanted: int, first_node: int, rng: np.random.Generator
) -> NodeFailures:
    """Return the failures of so many random nodes of a trace, numbered from the first one on."""
    renamed = rng.permutation(failures.nodes)[failures.node]
    inside = renamed < wanted
    start_s = rng.uniform(0.0, failures.length_s)
    at_s = (failures.at_s[inside] - start_s) % failures.length_s
    node = renamed[inside] + first_node
    repair_s = failures.repair_s[inside]
    interrupts = failures.interrupts[inside]
    of_process = failures.kills_process[inside]
    # The trace is a ring, so its last failures are also those shortly before the start.
    left_s = at_s + repair_s - failures.length_s
    under_repair: dict[int, float] = {}
    for each in np.flatnonzero(interrupts & ~of_process & (left_s > 0.0)):
        number = int(node[each])
        under_repair[number] = max(float(left_s[each]), under_repair.get(number, 0.0))
    return NodeFailures(
        wanted, failures.length_s, at_s, node, repair_s, interrupts, under_repair, of_process
    )


@dataclass(frozen=True)
class RandomFailures:
    """Failures at random instants, of nodes and of the job's processes.

    `node_rate_s` is how often in a second a node fails that works. Then it is under repair, for
    `repair_s` on average. Repairs are lognormal. `job_rate_s` is how often in a second a process of
    the job dies while its nodes stay. A job that has shrunk has fewer processes to lose.
    """

    node_rate_s: float
    job_rate_s: float
    repair_s: float

    def draw(self, nodes: int, needed: int, rng: np.random.Generator) -> NodeFailures:
        """Return the failures of so many nodes, of which a job needs some."""
        found = drawn(nodes, DRAWN_S, rng, self.node_rate_s, repair_median_s=self._median_s)
        under_repair = self._under_repair(nodes, rng)
        works = strikes_working(found, under_repair)
        # Deaths of processes come in among the failures of nodes.
        deaths = rng.poisson(nodes * DRAWN_S * self.job_rate_s / needed)
        at_s = np.append(found.at_s[works], rng.uniform(0.0, DRAWN_S, deaths))
        node = np.append(found.node[works], rng.integers(nodes, size=deaths))
        repair_s = np.append(found.repair_s[works], np.zeros(deaths))
        of_process = np.arange(len(at_s)) >= works.sum()
        order = np.argsort(at_s, kind="stable")
        return NodeFailures(
            nodes,
            DRAWN_S,
            at_s[order],
            node[order],
            repair_s[order],
            np.ones(len(at_s), dtype=bool),
            under_repair,
            of_process[order],
        )

    @property
    def _median_s(self) -> float:
        return self.repair_s / math.exp(0.5 * _REPAIR_DEVIATION**2)

    def _under_repair(self, nodes: int, rng: np.random.Generator) -> dict[int, float]:
        """Return the nodes that are broken at the start, and when they come back.

        A node works for 1/`node_rate_s` on average, and then is broken for `repair_s`. An instant
        is likelier in a long repair than in a short one. The repairs that instants meet are
        lognormal, too, with a median that is exp(deviation²) times as long.
        """
        broken_to_working = self.node_rate_s * self.repair_s
        share = broken_to_working / (1.0 + broken_to_working)
        broken = np.flatnonzero(rng.uniform(size=nodes) < share)
        met_s = self._median_s * rng.lognormal(_REPAIR_DEVIATION**2, _REPAIR_DEVIATION, len(broken))
        left_s = met_s * rng.uniform(size=len(broken))
        return dict(zip(broken.tolist(), left_s.tolist(), strict=True))


def of_first_nodes(failures: NodeFailures, nodes: int) -> NodeFailures:
    """Return the failures of the first nodes alone, so that fewer nodes meet the same ones."""
    inside = failures.node < nodes
    under_repair = {node: at_s for node, at_s in failures.under_repair.items() if node < nodes}
    return NodeFailures(
        nodes,
        failures.length_s,
        failures.at_s[inside],
        failures.node[inside],
        failures.repair_s[inside],
        failures.interrupts[inside],
        under_repair,
        failures.kills_process[inside],
    )


def strikes_working(
    failures: NodeFailures, under_repair: Mapping[int, float] | None = None
) -> NDArray[np.bool_]:
    """Return a mask of the failures that strike a node which works.

    A node that is under repair does not fail again. `under_repair` are those that are so at the
    start; None for those that the failures name.
    """
    until_s = dict(failures.under_repair if under_repair is None else under_repair)
    works = np.ones(len(failures.at_s), dtype=bool)
    for number, (at_s, node, repair_s, _, _) in enumerate(failures.events()):
        if at_s < until_s.get(node, 0.0):
            works[number] = False
        else:
            until_s[node] = at_s + repair_s
    return works


def _renewals(
    nodes: int,
    length_s: float,
    rng: np.random.Generator,
    shape: float,
    scale_s: float,
    mean_s: float,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the instants and nodes of failures with Weibull gaps."""
    warm_up_s = 5.0 * mean_s
    ends_s = np.zeros(nodes)
    found_s: list[NDArray[np.float64]] = []
    found_nodes: list[NDArray[np.int64]] = []
    living = np.arange(nodes)
    while len(living):
        ends_s[living] += scale_s * rng.weibull(shape, len(living))
        living = living[ends_s[living] < warm_up_s + length_s]
        counted = living[ends_s[living] >= warm_up_s]
        found_s.append(ends_s[counted] - warm_up_s)
        found_nodes.append(counted)
    at_s = np.concatenate(found_s)
    order = np.argsort(at_s)
    return at_s[order], np.concatenate(found_nodes)[order]
