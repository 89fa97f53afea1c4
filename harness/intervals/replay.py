"""The effective training time under given failures of nodes, with spares and repairs.

Two steps. First come the interruptions of a job: which failures hit a node that it uses, and how
long it then waits for another node. They do not depend on checkpoints. Then all intervals and all
methods go through the same interruptions at once, so that their differences are paired.

An asynchronous checkpoint counts once it is durable. A failure before that falls back to the
checkpoint before. A failure during a recovery begins the recovery again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.intervals.costs import Costs
from harness.intervals.failures import NodeFailures

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interruptions:
    """The interruptions of a job: their instants, and the seconds that it waits for a node.

    It begins at `begin_s`, once it has all its nodes. `of_process` tells which interruptions cost
    it no node. Where it is empty, that is not known.
    """

    at_s: Floats
    wait_s: Floats
    length_s: float
    begin_s: float = 0.0
    of_process: tuple[bool, ...] = ()


def interruptions(failures: NodeFailures, needed: int) -> Interruptions:
    """Return when a job that needs so many of the nodes is interrupted, and how long it waits.

    The nodes beyond the needed ones are spares. A spare that fails interrupts nothing. Failures of
    one instant are one interruption. A repaired node becomes a spare. A job that lacks nodes at the
    start waits for the first repairs.
    """
    failures.require_room(needed)
    broken = failures.repairs()
    healthy = failures.healthy
    missing = max(0, needed - len(healthy))
    first = [*healthy, *(node for _, node in broken[:missing])]
    used, spares = set(first[:needed]), set(first[needed:])
    begin_s = broken[missing - 1][0] if missing else 0.0
    broken = broken[missing:]  # sorted, so a heap
    at_s: list[float] = []
    wait_s: list[float] = []
    of_process: list[bool] = []
    ready_s = begin_s
    for now_s, node, repair_s, interrupts, kills_process in failures.events():
        while broken and broken[0][0] <= now_s:
            spares.add(heapq.heappop(broken)[1])
        if node in spares and not kills_process:
            spares.remove(node)
            heapq.heappush(broken, (now_s + repair_s, node))
        if node not in used or not interrupts:
            continue
        if not kills_process:
            used.remove(node)
            heapq.heappush(broken, (now_s + repair_s, node))
            # Without a spare, the job stands still until the first broken node has come back.
            missing_until_s, other = (now_s, spares.pop()) if spares else heapq.heappop(broken)
            used.add(other)
            ready_s = max(ready_s, missing_until_s)
        if at_s and now_s == at_s[-1]:
            wait_s[-1] = max(0.0, ready_s - now_s)
            of_process[-1] = of_process[-1] and kills_process
        else:
            at_s.append(now_s)
            wait_s.append(max(0.0, ready_s - now_s))
            of_process.append(kills_process)
    return Interruptions(
        np.array(at_s), np.array(wait_s), failures.length_s, begin_s, tuple(of_process)
    )


def effective_shares(found: Interruptions, costs: Sequence[Costs], intervals_s: Floats) -> Floats:
    """Return the effective share of each method (rows) at each interval (columns).

    `intervals_s` has one row for each method, or one row for all.
    """
    training_s = column(costs, "training_s")
    lag_s = column(costs, "lag_s")
    recovery_s = column(costs, "recovery_s")
    segment_s = intervals_s + training_s
    kept_s = np.zeros(segment_s.shape)
    # The instant at which the present life of the job begins: it has recovered until then.
    begin_s = np.full(segment_s.shape, found.begin_s)
    for now_s, wait_s in zip(found.at_s.tolist(), found.wait_s.tolist(), strict=True):
        alive_s = now_s - begin_s
        durable = np.floor((alive_s - lag_s) / segment_s)
        kept_s += np.maximum(durable, 0.0) * intervals_s
        begin_s = np.broadcast_to(now_s + wait_s + recovery_s, begin_s.shape)
    alive_s = np.maximum(found.length_s - begin_s, 0.0)
    whole = np.floor(alive_s / segment_s)
    rest_s = np.minimum(alive_s - whole * segment_s, intervals_s)
    # Nothing that was trained until the end is lost.
    kept_s += whole * intervals_s + rest_s
    result: Floats = kept_s / found.length_s
    return result


def shares(found: Interruptions, costs: Sequence[Costs], intervals_s: Floats) -> dict[str, Floats]:
    """Return how the time of each method divides, with one interval each in a column.

    The parts are those of `expected.PARTS`, beside the `effective` share. They add up to 1. After a
    failure come its detection, the wait for a node, the restart and the restore.
    """
    training_s = column(costs, "training_s")
    lag_s = column(costs, "lag_s")
    segment_s = intervals_s + training_s
    # Time runs from one interruption to the next. The first life waits for its nodes alone.
    left_s = np.diff(found.at_s, prepend=0.0, append=found.length_s)
    left_s = np.broadcast_to(left_s, (len(costs), len(left_s)))
    wait_s = np.concatenate(([found.begin_s], found.wait_s))
    is_after_failure = np.arange(len(wait_s)) > 0
    phases = {
        "detect": column(costs, "detect_s") * is_after_failure,
        "wait": wait_s[np.newaxis],
        "restart": column(costs, "restart_s") * is_after_failure,
        "restore": column(costs, "restore_s") * is_after_failure,
    }
    seconds: dict[str, Floats] = {}
    for name, phase_s in phases.items():
        # The next failure may come in any phase, and ends it.
        spent_s = np.minimum(left_s, phase_s)
        seconds[name] = spent_s.sum(axis=1)
        left_s = left_s - spent_s
    durable = np.maximum(np.floor((left_s - lag_s) / segment_s), 0.0)
    whole = np.floor(left_s / segment_s)
    rest_s = left_s - whole * segment_s
    kept_s = durable * intervals_s
    # Nothing that was trained until the end is lost.
    at_end_s = whole[:, -1:] * intervals_s + np.minimum(rest_s[:, -1:], intervals_s)
    kept_s[:, -1:] = at_end_s
    checkpoints_s = whole * training_s + np.maximum(rest_s - intervals_s, 0.0)
    seconds["effective"] = kept_s.sum(axis=1)
    seconds["checkpoints"] = checkpoints_s.sum(axis=1)
    recompute_s = np.maximum(left_s - kept_s - checkpoints_s, 0.0)
    seconds["recompute"] = recompute_s.sum(axis=1)
    return {name: value / found.length_s for name, value in seconds.items()}


def column(costs: Sequence[Costs], name: str) -> Floats:
    """Return one cost of every method, one below the other."""
    return np.array([[getattr(each, name)] for each in costs])
