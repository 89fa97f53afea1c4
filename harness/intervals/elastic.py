"""A job that goes on with fewer nodes when some break, instead of waiting for a repair.

It divides the batch among the nodes that are left, so it trains more slowly. When a repaired node
comes back, the job saves, and starts again with it. All that is lost then is the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.intervals.costs import Costs
from harness.intervals.failures import NodeFailures
from harness.intervals.replay import Floats, column


@dataclass(frozen=True)
class Change:
    """An instant at which the job starts again, and its nodes from then on.

    It is planned where a node comes back, and a failure where one breaks.
    """

    at_s: float
    is_failure: bool
    nodes: int


def changes(failures: NodeFailures, needed: int) -> Iterator[Change]:
    """Yield when a job that can use so many of the nodes changes, in the order of time.

    The nodes beyond the needed ones are spares, and take the places of broken ones. So the job
    shrinks only where no spare is left.
    """
    failures.require_room(needed)
    healthy = failures.healthy
    working, idle = set(healthy[:needed]), set(healthy[needed:])
    broken = failures.repairs()
    for now_s, node, repair_s, interrupts, kills_process in failures.events():
        yield from _repaired(broken, working, idle, needed, now_s)
        if node in idle and not kills_process:
            idle.remove(node)
            heapq.heappush(broken, (now_s + repair_s, node))
        elif node in working and interrupts:
            if not kills_process:
                working.remove(node)
                heapq.heappush(broken, (now_s + repair_s, node))
                if idle:
                    working.add(idle.pop())
            yield Change(now_s, True, len(working))
    yield from _repaired(broken, working, idle, needed, failures.length_s)


def effective_shares(
    failures: NodeFailures, needed: int, costs: Sequence[Costs], intervals_s: Floats
) -> Floats:
    """Return the effective share of each method (rows) at each interval (columns).

    A job with half of its nodes trains half as much in a second. A failure before the save of a
    planned start is durable falls back to the checkpoint before.
    """
    training_s = column(costs, "training_s")
    lag_s = column(costs, "lag_s")
    recovery_s = column(costs, "recovery_s")
    detect_s = column(costs, "detect_s")
    segment_s = intervals_s + training_s
    kept_s = np.zeros(segment_s.shape)
    begin_s = np.zeros(segment_s.shape)
    # What the save before a planned start holds, beyond older checkpoints, and when it is durable.
    held_s = np.zeros(segment_s.shape)
    durable_at_s = np.zeros(segment_s.shape)
    failures.require_room(needed)
    speed = min(needed, len(failures.healthy)) / needed
    for change in changes(failures, needed):
        alive_s = np.maximum(change.at_s - begin_s, 0.0)
        durable = np.maximum(np.floor((alive_s - lag_s) / segment_s), 0.0)
        held_s = np.where(change.at_s < durable_at_s, held_s, 0.0)
        if change.is_failure:
            kept_s += speed * durable * intervals_s - held_s
            held_s = np.zeros(segment_s.shape)
            begin_s = np.broadcast_to(change.at_s + recovery_s, segment_s.shape)
        else:
            trained_s = _trained_s(alive_s, intervals_s, segment_s)
            kept_s += speed * trained_s
            held_s += speed * (trained_s - durable * intervals_s)
            durable_at_s = np.broadcast_to(change.at_s + training_s + lag_s, segment_s.shape)
            # Nobody has to detect a planned start, and a recovery that was going on is over later.
            planned_s = change.at_s + training_s + lag_s + recovery_s - detect_s
            begin_s = np.maximum(begin_s, planned_s)
        speed = change.nodes / needed
    alive_s = np.maximum(failures.length_s - begin_s, 0.0)
    kept_s += speed * _trained_s(alive_s, intervals_s, segment_s)
    result: Floats = kept_s / failures.length_s
    return result


def _repaired(
    broken: list[tuple[float, int]],
    working: set[int],
    idle: set[int],
    needed: int,
    until_s: float,
) -> Iterator[Change]:
    """Yield the changes by nodes that come back until an instant. Others become spares."""
    while broken and broken[0][0] <= until_s:
        at_s, node = heapq.heappop(broken)
        if len(working) == needed:
            idle.add(node)
            continue
        working.add(node)
        yield Change(at_s, False, len(working))


def _trained_s(alive_s: Floats, intervals_s: Floats, segment_s: Floats) -> Floats:
    """Return the seconds of training in a life whose end is planned."""
    whole = np.floor(alive_s / segment_s)
    rest_s = np.minimum(alive_s - whole * segment_s, intervals_s)
    trained_s: Floats = whole * intervals_s + rest_s
    return trained_s
