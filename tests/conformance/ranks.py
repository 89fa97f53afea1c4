"""One rank of the suite under mpirun: `ranks.py FOLDER STRATEGIES CHECK...`.

Rank 0 prints a line for each thing that was checked, "NAME: right" or what is wrong on any rank.
The check `save` leaves checkpoints in the folder, which `load` reads with another number of ranks.
The check `train` leaves the leaves of states, which a test compares with those of one rank.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import socket
import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from declarations import is_readable_by_any_world
from entry_checks import check_files, check_sizes_of_roles
from numpy.typing import NDArray
from rank_cases import COMPARED_STEPS, leaves_file, methods_for, rank_workload, saved_cases
from subject import (
    SUBJECT,
    copied_leaves,
    digest,
    digests,
    item_bytes,
    new_framework,
    new_method,
    opened,
    same,
    train,
    trained,
)

from adapters.base import Coverage, Entry, Framework, Leaf, Method, RankLocal, Replicated, Shard
from workloads import Role, Workload

QUIRKS = SUBJECT.quirks
Bytes = NDArray[np.uint8]


@functools.cache
def ranks() -> Any:
    """Return all ranks.

    A daemon that a method starts may import this module too, and must not start MPI.
    """
    from mpi4py import MPI

    return MPI.COMM_WORLD


@contextmanager
def started(strategy: str, folder: Path) -> Iterator[Framework[Any]]:
    """Start the framework on all ranks. A world of one rank has no strategy."""
    place: dict[str, Any] = {"memory": None}
    if ranks().size > 1:
        rendezvous = ranks().bcast(("127.0.0.1", free_port()) if ranks().rank == 0 else None)
        place |= {
            "rank": ranks().rank,
            "local_rank": ranks().rank,
            "world": ranks().size,
            "rendezvous": rendezvous,
            "strategy": strategy,
        }
    framework = new_framework(folder, **place)
    yield framework
    framework.stop()


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def report(what: str, problems: list[str]) -> None:
    """Print what any rank has found."""
    all_problems: set[str] = set()
    for problems_of_rank in ranks().allgather(problems):
        all_problems |= set(problems_of_rank)
    if ranks().rank == 0:
        print(f"{what}: {'; '.join(sorted(all_problems)[:5]) or 'right'}", flush=True)


# --- training ---


def check_training(framework: Framework[Any], strategy: str, folder: Path) -> None:
    """Train by a strategy."""
    for case in QUIRKS.trained_cases:
        workload = rank_workload(case)
        report(f"{strategy} builds {case}", wrong_first_values(framework, workload))
        report(f"{strategy} trains {case}", wrong_training(framework, workload, strategy))
    for case in QUIRKS.averaged_cases:
        write_leaves(framework, case, strategy, folder)
        report(f"{strategy} averages {case}", [])


def wrong_first_values(framework: Framework[Any], workload: Workload) -> list[str]:
    """Return the parameters that do not start with the workload's values, on whichever rank."""
    whole = whole_leaves(framework, framework.build(workload, 3))
    is_master = workload.master_weights and QUIRKS.fills_master_weights
    part = "optimizer/master" if is_master else "weights"
    problems = []
    for variable in workload.parameters:
        name = f"{part}/{variable.name}"
        if whole[name].tobytes() != workload.initial(variable.name, 3).tobytes():
            problems.append(f"{name} starts with other values")
    return problems


def wrong_training(framework: Framework[Any], workload: Workload, strategy: str) -> list[str]:
    """Return what is wrong with a training on several ranks.

    The ranks must agree on what they share and on nothing else. Training must be repeatable. A
    state that is given the leaves of another one must go on like it, and states must be freed.
    """
    state = trained(framework, workload, 1, 3)
    again = trained(framework, workload, 1, 3)
    other = trained(framework, workload, 2, QUIRKS.steps_before_assigning(strategy))
    problems = wrong_views(framework, state)
    values = copied_leaves(framework, state)
    problems += differing(values, copied_leaves(framework, again), "is not repeatable")
    problems += wrong_assignment(framework, state, other)
    alive = None
    part = QUIRKS.part_that_dies(state)
    if part is not None:
        alive = weakref.ref(part)
    del state, again, other, part
    gc.collect()
    if alive is not None and alive() is not None:
        problems.append("a state that nobody has is still alive")
    return problems


def wrong_views(framework: Framework[Any], state: Any) -> list[str]:
    """Return replicated leaves that differ between ranks, and rank-local ones that do not."""
    views = ranks().allgather(digests(framework, state))
    problems = []
    count = 0
    for leaf in framework.leaves(state):
        distinct = len({view[leaf.name] for view in views})
        if leaf.placement == Replicated():
            count += 1
            if distinct != 1:
                problems.append(f"{leaf.name} differs between the ranks")
        is_own = leaf.placement == RankLocal()
        if leaf.role is Role.BUFFER and not QUIRKS.buffers_differ_between_ranks:
            continue
        if is_own and distinct != ranks().size:
            problems.append(f"{leaf.name} is the same on several ranks")
    if not count:
        problems.append("nothing is replicated")
    return problems


def wrong_assignment(framework: Framework[Any], state: Any, other: Any) -> list[str]:
    """Give a state some and then all leaves of another one, and return what is wrong with it."""
    programs = QUIRKS.compiled_programs(other)
    values = copied_leaves(framework, state)
    expected = copied_leaves(framework, other)
    some = dict(list(values.items())[::2])
    framework.assign(other, {name: memoryview(data) for name, data in some.items()})
    problems = differing(expected | some, copied_leaves(framework, other), "is wrongly assigned")
    framework.assign(other, {name: memoryview(data) for name, data in values.items()})
    problems += differing(values, copied_leaves(framework, other), "was not assigned")
    for each in (state, other):
        train(framework, each, 1)
    expected = copied_leaves(framework, state)
    problems += differing(expected, copied_leaves(framework, other), "goes on otherwise")
    # A state that has taken no step has no programs yet.
    if programs != QUIRKS.compiled_programs(other):
        problems.append("the step was compiled again")
    return problems


def write_leaves(framework: Framework[Any], case: str, strategy: str, folder: Path) -> None:
    """Train without differences between the ranks, and write the leaves of all ranks together."""
    workload = rank_workload(case, QUIRKS.averaged_dropout(strategy))
    state = framework.build(workload, 1)
    train(framework, state, QUIRKS.lost_updates(strategy))
    done = 0
    for steps in COMPARED_STEPS:
        train(framework, state, steps - done)
        done = steps
        whole = whole_leaves(framework, state)
        if ranks().rank == 0:
            np.savez(folder / leaves_file(strategy, ranks().size, case, steps), **whole)


# --- saving ---


def check_saving(framework: Framework[Any], strategy: str, folder: Path) -> None:
    """Save by every method, and load with the same ranks."""
    for case in saved_cases(strategy):
        workload = rank_workload(case)
        state = trained(framework, workload, 1, 2)
        target = trained(framework, workload, 2, 1)
        for name in methods_for(strategy, workload):
            path = folder / strategy / case / name
            problems = wrong_restore(framework, state, target, name, path)
            report(f"{name} under {strategy} with {case}", problems)


def wrong_restore(
    framework: Framework[Any], state: Any, target: Any, name: str, path: Path
) -> list[str]:
    """Save behind a training step, load into another state, and return what did not come back.

    The state takes two steps, and the target ends one step behind it. So the target never has the
    values of the next checkpoint.
    """
    if ranks().rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
    saved = digests(framework, state)
    # A method whose rank 0 writes alone gives all ranks what rank 0 has.
    expected = ranks().bcast(saved) if writes_for_all(name) else saved
    write_expected(framework, state, name, path)
    names, unchecked = covered_on_ranks(framework, state, name)
    method = new_method(name, framework)
    with opened(method, state):
        ranks().barrier()
        pending = method.save(state, path)
        framework.gradients(state)
        pending.staged()
        framework.update(state)
        pending.finished()
        ranks().barrier()
        problems = wrong_entries(framework, method, name, state, path)
        method.load(target, path)
    restored = same(expected, digests(framework, target))
    problems += [f"{leaf} did not come back" for leaf in sorted(names - restored)]
    undeclared = restored - names - unchecked
    problems += [f"{leaf} came back, which is not declared" for leaf in sorted(undeclared)]
    train(framework, target, 1)
    if names == saved.keys() and not writes_for_all(name):
        one_step_later = copied_leaves(framework, state)
        problems += differing(one_step_later, copied_leaves(framework, target), "goes on otherwise")
    train(framework, state, 1)
    return problems


def writes_for_all(name: str) -> bool:
    """Return whether all ranks get from a method what rank 0 has."""
    method = SUBJECT.methods[name]
    return method.get("writes") == "one-rank" and not method.get("rank_local", False)


def covered_on_ranks(framework: Framework[Any], state: Any, name: str) -> tuple[set[str], set[str]]:
    """Return the leaves that a method must restore on this rank, and those that it may restore."""
    method = SUBJECT.methods[name]
    roles = Coverage(method["covers"]).roles
    covered = {leaf.name for leaf in framework.leaves(state) if leaf.role in roles}
    if method.get("rank_local") or writes_for_all(name):
        return covered, set()
    local = {leaf.name for leaf in framework.leaves(state) if leaf.placement == RankLocal()}
    return covered - local, local


def write_expected(framework: Framework[Any], state: Any, name: str, path: Path) -> None:
    """Write the digests of what all ranks together have, for a load with other ranks."""
    roles = Coverage(SUBJECT.methods[name]["covers"]).roles
    covered = {leaf.name for leaf in framework.leaves(state) if leaf.role in roles}
    whole = whole_leaves(framework, state)
    expected = {leaf: digest(data) for leaf, data in whole.items() if leaf in covered}
    if ranks().rank == 0:
        path.with_suffix(".json").write_text(json.dumps(expected))


def wrong_entries(
    framework: Framework[Any], method: Method[Any], name: str, state: Any, path: Path
) -> list[str]:
    """Return what is wrong with the entries, which must be as large as the state of all ranks."""
    declared = SUBJECT.methods[name]
    if declared["format"] in QUIRKS.formats_without_entries:
        return []
    entries = list(method.entries(path))
    leaf_bytes: Counter[Role] = Counter()
    for leaf in framework.leaves(state):
        leaf_bytes[leaf.role] += stored_bytes(leaf, name)
    roles = [Role.WEIGHT, Role.OPTIMIZER]
    if declared.get("rank_local") or writes_for_all(name):
        roles.append(Role.BUFFER)
    writers = ranks().size if declared.get("writes") == "every-rank" else 1
    try:
        check_sizes_of_roles(name, leaf_bytes, entries, roles, writers)
        check_files(path, entries)
    except AssertionError as error:
        return [f"entries: {error}"]
    return wrong_number_of_files(name, entries) if QUIRKS.writes_one_file_per_rank else []


def stored_bytes(leaf: Leaf, name: str) -> int:
    """Return the bytes of a leaf in a checkpoint, on all ranks where each writes a part of it."""
    method = SUBJECT.methods[name]
    is_own = leaf.placement == RankLocal() and method.get("rank_local", False)
    is_written_by_all = method.get("writes") == "every-rank"
    if is_own or is_written_by_all or isinstance(leaf.placement, Shard):
        return int(ranks().allreduce(leaf.data.nbytes))
    return leaf.data.nbytes


def wrong_number_of_files(name: str, entries: list[Entry]) -> list[str]:
    """Return a problem if not every rank that writes has one file."""
    writers = 1 if SUBJECT.methods[name].get("writes") == "one-rank" else ranks().size
    files = {entry.file for entry in entries}
    return [] if len(files) == writers else [f"{len(files)} files from {writers} ranks"]


# --- loading ---


def check_loading(framework: Framework[Any], strategy: str, folder: Path) -> None:
    """Load what another number of ranks has saved."""
    for case in saved_cases(strategy):
        workload = rank_workload(case)
        target = trained(framework, workload, 3, 1)
        for name in methods_for(strategy, workload):
            train(framework, target, 1)
            path = folder / strategy / case / name
            what = f"{name} under {strategy} with {case}"
            if is_readable_by_any_world(SUBJECT.methods[name]):
                report(what, wrong_reshard(framework, target, name, path))
            elif QUIRKS.refusal is not None:
                report(what, wrong_refusal(framework, target, name, path))


def wrong_reshard(framework: Framework[Any], target: Any, name: str, path: Path) -> list[str]:
    """Return the leaves that are not what all ranks together had saved."""
    before = digests(framework, target)
    method = new_method(name, framework)
    with opened(method, target):
        method.load(target, path)
    expected: dict[str, str] = json.loads(path.with_suffix(".json").read_text())
    whole = {leaf: digest(data) for leaf, data in whole_leaves(framework, target).items()}
    problems = [f"{leaf} did not come back" for leaf in expected if whole[leaf] != expected[leaf]]
    if QUIRKS.leaves_rank_local_leaves_alone(name):
        kept = {leaf: before[leaf] for leaf in before if leaf not in expected}
        problems += differing(kept, digests(framework, target), "changed")
    return problems


def wrong_refusal(framework: Framework[Any], target: Any, name: str, path: Path) -> list[str]:
    """Return a problem if a method that cannot load with these ranks does not say so."""
    assert QUIRKS.refusal is not None
    try:
        new_method(name, framework).load(target, path)
    except QUIRKS.refusal:
        return []
    return ["it was loaded"]


# --- leaves ---


def whole_leaves(framework: Framework[Any], state: Any) -> dict[str, Bytes]:
    """Return all leaves but those of a rank alone, with an axis for the bytes of an element."""
    whole = {}
    for leaf in framework.leaves(state):
        # A rank's shard may be empty, so numpy could not find out the last axis by itself.
        part = np.frombuffer(leaf.data, np.uint8).reshape(*leaf.shape, item_bytes(leaf.dtype))
        if isinstance(leaf.placement, Shard):
            whole[leaf.name] = joined(leaf.placement, part)
        elif leaf.placement == Replicated():
            whole[leaf.name] = part.copy()
    return whole


def joined(placement: Shard, part: Bytes) -> Bytes:
    """Put the shards of all ranks side by side. They must neither overlap nor leave a gap."""
    tensor = np.zeros((*placement.global_shape, part.shape[-1]), np.uint8)
    times = np.zeros(placement.global_shape, int)
    for offset, other in ranks().allgather((placement.offset, part)):
        sizes = other.shape[:-1]
        area = tuple(slice(start, start + size) for start, size in zip(offset, sizes, strict=True))
        tensor[area] = other
        times[area] += 1
    assert (times == 1).all()
    return tensor


def differing(expected: Any, actual: Any, how: str) -> list[str]:
    """Return a problem for every leaf that is not as expected."""
    return [f"{name} {how}" for name in expected if actual.get(name) != expected[name]]


CHECKS: dict[str, Callable[[Framework[Any], str, Path], None]] = {
    "train": check_training,
    "save": check_saving,
    "load": check_loading,
}


def main(folder: Path, strategies: list[str], checks: list[str]) -> None:
    """Run the checks, and leave together. An error on one rank ends all of them."""
    try:
        for strategy in strategies:
            with started(strategy, folder) as framework:
                for check in checks:
                    CHECKS[check](framework, strategy, folder)
    except BaseException:
        # The others would wait for ever for a rank that is gone.
        traceback.print_exc()
        ranks().Abort(1)
    from mpi4py import MPI

    ranks().barrier()
    MPI.Finalize()
    # A normal exit aborts now and then, in a thread of a process group.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:])
