"""The state under test in numbers: its bytes by role, and how long copies of it take."""

from __future__ import annotations

from typing import NamedTuple

from adapters.base import Coverage, Leaf, RankLocal, Replicated
from harness.wire.case import Case
from harness.wire.records import StateRecord
from harness.worker.bench import Bench
from harness.worker.ceiling import median_ns
from harness.worker.clock import now_ns
from harness.worker.device_link import DeviceLink
from harness.worker.world import World

_COPY_TRIES = 3


class Copies(NamedTuple):
    """The median durations of copies of the whole state; 0 where none was made.

    `memory_ns` is single-threaded. `device_ns` is the framework's copy of its tensors off the
    device. `to_host_ns` and `to_device_ns` are one transfer of as many bytes in large pieces.
    """

    memory_ns: int = 0
    device_ns: int = 0
    to_host_ns: int = 0
    to_device_ns: int = 0


NO_COPIES = Copies()


def measure_copies(bench: Bench) -> Copies:
    """Copy the state in memory and off its device, and as many bytes, a few times each."""
    memory_ns = [
        bench.ceiling.memory_copy_ns(leaf.data for leaf in bench.framework.leaves(bench.state))
        for _ in range(_COPY_TRIES)
    ]
    if bench.place.device == "cpu":
        return Copies(median_ns(memory_ns))
    link = DeviceLink(bench.place.local_rank)
    copied_bytes = bytes_on_rank(bench)
    tries = range(_COPY_TRIES)
    return Copies(
        memory_ns=median_ns(memory_ns),
        device_ns=median_ns(_copy_to_host_ns(bench) for _ in tries),
        to_host_ns=median_ns(link.to_host_ns(copied_bytes) for _ in tries),
        to_device_ns=median_ns(link.to_device_ns(copied_bytes) for _ in tries),
    )


def _copy_to_host_ns(bench: Bench) -> int:
    begin = now_ns()
    bench.framework.copy_to_host(bench.state)
    return now_ns() - begin


def bytes_on_rank(bench: Bench) -> int:
    """Return the bytes of the state that this rank holds."""
    return sum(leaf.data.nbytes for leaf in bench.framework.leaves(bench.state))


def state_record(bench: Bench, case: Case, copies: Copies = NO_COPIES) -> StateRecord:
    """Return the bytes of the state over all ranks, and what the case's method covers of them."""
    covers = Coverage(case.covers)
    bytes_by_role: dict[str, int] = {}
    leaf_count = 0
    covered_count = 0
    covered_bytes = 0
    for leaf in bench.framework.leaves(bench.state):
        role = str(leaf.role)
        leaf_bytes = _bytes_in_world(leaf, bench.world)
        bytes_by_role[role] = bytes_by_role.get(role, 0) + leaf_bytes
        leaf_count += 1
        if leaf.role in covers.roles:
            covered_count += 1
            covered_bytes += _bytes_in_checkpoint(leaf, leaf_bytes, case)
    return StateRecord(
        kind="state",
        **bench.identity(case),
        leaves=leaf_count,
        covered_leaves=covered_count,
        state_bytes=sum(bytes_by_role.values()),
        covered_bytes=covered_bytes,
        bytes_by_role=bytes_by_role,
        memory_copy_ns=copies.memory_ns,
        device_copy_ns=copies.device_ns,
        to_host_ns=copies.to_host_ns,
        to_device_ns=copies.to_device_ns,
    )


def _bytes_in_world(leaf: Leaf, world: World) -> int:
    """Return a leaf's bytes over all ranks. A replicated leaf counts once."""
    if isinstance(leaf.placement, Replicated):
        return leaf.data.nbytes
    return world.total(leaf.data.nbytes)


def _bytes_in_checkpoint(leaf: Leaf, world_bytes: int, case: Case) -> int:
    """Return a leaf's bytes in a checkpoint of all ranks.

    Of a rank-local leaf, some methods save the value of one rank only.
    """
    saves_one_value = isinstance(leaf.placement, RankLocal) and not case.rank_local
    return leaf.data.nbytes if saves_one_value else world_bytes
