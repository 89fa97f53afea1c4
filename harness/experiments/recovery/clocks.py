"""The clocks of nodes, which ranks compare, so that the events of all nodes are on one clock.

A monotonic clock counts from the boot of its node. So two nodes show different times, and a part of
a way back can begin on one of them and end on another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.experiments.recovery.events import Event, EventLog

_ROUNDS = 50  # of messages, of which the fastest counts
_COMPARED = "clock"


class NoRankHere(Exception):
    """No rank was on the driver's node, so nobody knows its clock. The message says what to do."""


@dataclass(frozen=True)
class Ahead:
    """By how many nanoseconds a clock is ahead of another one, and how far off that may be."""

    ahead_ns: int
    error_ns: int


def compare(team: Any, node: str, log: EventLog) -> None:
    """Have one rank of every node note by how much its clock is ahead of rank 0's.

    All ranks of `team`, a communicator of mpi4py, call this together. On one node it does nothing.
    """
    nodes = team.allgather(node)
    first_ranks = sorted({nodes.index(other) for other in nodes})
    if len(first_ranks) == 1:
        return
    for rank in first_ranks[1:]:
        if team.rank == 0:
            _answer(team, rank)
        elif team.rank == rank:
            _note(log, _ask(team))
    if team.rank == 0:
        _note(log, Ahead(0, 0))


def on_clock_of(node: str, events: Sequence[Event]) -> list[Event]:
    """Return the events in the order of time, with the instants that the clock of `node` showed.

    A process has noted its node in the event "started". The events of a node are left out where its
    clock was not compared, because the job broke before. On several nodes, so are those of a
    process whose first event a full disk has torn. Raises NoRankHere if none was on `node`.
    """
    node_of = {event.process: event.values["node"] for event in events if event.name == "started"}
    nodes = set(node_of.values())
    if nodes <= {node}:
        return list(events)
    if node not in nodes:
        raise NoRankHere(
            f"the clocks of {', '.join(sorted(nodes))} could not be compared with that of {node}, "
            "because no rank is there; start the run on one of the nodes that have ranks"
        )
    events = [event for event in events if event.process in node_of]
    ahead_ns = _ahead_ns(node_of, events)
    if node not in ahead_ns:
        return []
    moved = []
    for event in events:
        of_node = node_of[event.process]
        if of_node in ahead_ns:
            at_ns = event.at_ns - ahead_ns[of_node] + ahead_ns[node]
            moved.append(replace(event, at_ns=at_ns))
    return sorted(moved, key=lambda event: event.at_ns)


def error_ns(events: Sequence[Event]) -> int:
    """Return by how much an instant of a job may be off on another node; 0 on a single node.

    Two clocks were both compared with that of rank 0, so their errors add up.
    """
    compared = [event.values["error_ns"] for event in events if event.name == _COMPARED]
    return sum(sorted(compared)[-2:])


def _note(log: EventLog, found: Ahead) -> None:
    log.write(_COMPARED, ahead_ns=found.ahead_ns, error_ns=found.error_ns)


def _ahead_ns(node_of: Mapping[str, str], events: Sequence[Event]) -> dict[str, int]:
    """Return by how much the clock of each node is ahead of that of rank 0's node."""
    ahead_ns = {}
    for event in events:
        if event.name == _COMPARED:
            node = node_of[event.process]
            ahead_ns[node] = event.values["ahead_ns"]
    return ahead_ns


def _ask(team: Any) -> Ahead:
    """Compare this rank's clock with rank 0's, by the message that came back first of many.

    Rank 0 looked at its clock between the two instants, so the middle of them is wrong by half of
    the time between at most. See Cristian, "Probabilistic clock synchronization", Distributed
    Computing 3, 1989.
    """
    found: list[Ahead] = []
    for _ in range(_ROUNDS):
        asked_ns = time.monotonic_ns()
        team.send(None, dest=0)
        there_ns = team.recv(source=0)
        answered_ns = time.monotonic_ns()
        middle_ns = (asked_ns + answered_ns) // 2
        half_ns = (answered_ns - asked_ns + 1) // 2  # rounded up
        found.append(Ahead(middle_ns - there_ns, half_ns))
    return min(found, key=lambda each: each.error_ns)


def _answer(team: Any, rank: int) -> None:
    """Tell a rank what the clock shows, each time that it asks."""
    for _ in range(_ROUNDS):
        team.recv(source=rank)
        team.send(time.monotonic_ns(), dest=rank)
