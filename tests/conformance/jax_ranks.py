"""One rank of JAX under mpirun: `jax_ranks.py STRATEGY FOLDER [SAVED]`.

Prints a line for each check, "NAME: equal" or what is not. FOLDER gets the checkpoints, what they
hold and what training has come to; SAVED is the folder of a run with another number of ranks, of
which the checkpoints are loaded.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mpi4py import MPI
from test_jax import (
    METHODS,
    RESHARDED,
    SPLIT,
    SPLIT_DROPOUT,
    SPLIT_STEPS,
    Bytes,
    check_files,
    digest,
    digests,
    leaves_own_alone,
    make,
    methods_for,
    resharding_for,
    role_bytes,
    train,
    trained,
)

import workloads
from adapters.base import DirectIo, Leaf, Method, Place, RankLocal, Replicated, Shard
from adapters.jax.framework import Jax
from adapters.jax.state import State
from workloads import Role, Workload

WORLD = MPI.COMM_WORLD


def main(strategy: str, folder: Path, saved: Path | None) -> None:
    """Run all checks, those of two ranks or those of more."""
    rendezvous = WORLD.bcast(("127.0.0.1", free_port()) if WORLD.rank == 0 else None)
    framework = Jax()
    framework.start(
        Place(
            WORLD.rank,
            WORLD.size,
            "cpu",
            folder,
            DirectIo(False, 0, 0),
            rendezvous,
            WORLD.rank,
            strategy,
        )
    )
    workload = workloads.load(*RESHARDED[strategy])
    checks = (
        resharding(framework, workload, folder, saved)
        if saved
        else saving(framework, workload, folder)
    )
    for name, found in checks:
        print(f"{name}: {found}\n", end="", flush=True)
    framework.stop()
    WORLD.barrier()
    MPI.Finalize()
    os._exit(0)


def saving(framework: Jax, workload: Workload, folder: Path) -> Iterator[tuple[str, str]]:
    """Train, assign, save and load with this number of ranks."""
    state = trained(framework, workload, 1, 2)
    write(
        folder / "saved.json",
        {name: digest(data) for name, data in whole(framework, state).items()},
    )
    for name in methods_for(framework.place.strategy):
        yield name, restored(framework, name, state, folder / name)
    yield "assigned", assigned(framework, workload)
    yield (
        "replicas of resnet50",
        replicas(framework, trained(framework, workloads.load("resnet50", "small"), 1, 3)),
    )


def resharding(
    framework: Jax, workload: Workload, folder: Path, saved: Path
) -> Iterator[tuple[str, str]]:
    """Load what another number of ranks has saved, and train for a comparison with one rank."""
    for name in resharding_for(framework.place.strategy):
        yield name, loaded(framework, workload, name, saved)
    yield "repeated with dropout", repeated(framework, workloads.load("candle-mlp", "small"))
    for name in SPLIT:
        split = workloads.load(name, "small", dropout=SPLIT_DROPOUT[framework.place.strategy])
        yield f"repeated {name}", repeated(framework, split)
        state = framework.build(split, 1)
        for steps in SPLIT_STEPS:
            train(framework, state, steps - state.step)
            write_arrays(folder / f"{name}-{steps}.npz", whole(framework, state))
        yield f"replicas of {name}", replicas(framework, state)


def restored(framework: Jax, name: str, state: State, path: Path) -> str:
    """Save a copy of the state behind a training step, and load it into another state."""
    state = copied(framework, state)
    every_rank = METHODS[name].get("rank_local", False)
    covered = [
        leaf.name
        for leaf in framework.leaves(state)
        if every_rank or not isinstance(leaf.placement, RankLocal)
    ]
    saved = digests(framework, state)
    method = make(name, framework)
    method.open(state)
    pending = method.save(state, path)
    framework.gradients(state)
    pending.staged()
    framework.update(state)
    pending.finished()
    WORLD.barrier()
    wrong = wrong_entries(framework, name, method, state, path)
    target = trained(framework, state.workload, 2, 1)
    method.load(target, path)
    method.close()
    wrong += different(saved, digests(framework, target), covered)
    if every_rank:
        train(framework, target, 1)
        wrong += [
            f"{leaf} a step later"
            for leaf in different(digests(framework, state), digests(framework, target), covered)
        ]
    return verdict(wrong)


def wrong_entries(
    framework: Jax, name: str, method: Method[State], state: State, path: Path
) -> list[str]:
    """Return the roles of which the entries have other bytes than the state over all ranks."""
    entries = list(method.entries(path))
    check_files(path, entries)
    expected = role_bytes(framework, state, lambda leaf: stored_bytes(leaf, name))
    found = {role: sum(entry.raw_bytes for entry in entries if entry.role is role) for role in Role}
    return [
        f"entries of {role}"
        for role in (Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER)
        if found[role] != expected[role]
    ]


def stored_bytes(leaf: Leaf, name: str) -> int:
    """Return the bytes that a checkpoint has of a leaf: of all ranks' where each writes its own."""
    own = name == "safetensors-per-rank" or isinstance(leaf.placement, Shard)
    of_a_rank = isinstance(leaf.placement, RankLocal) and METHODS[name].get("rank_local", False)
    return WORLD.allreduce(leaf.data.nbytes) if own or of_a_rank else leaf.data.nbytes


def loaded(framework: Jax, workload: Workload, name: str, saved: Path) -> str:
    """Load a checkpoint of another number of ranks: all that the ranks share comes back, and what is a rank's own stays."""
    target = framework.build(workload, 2)
    local = [leaf for leaf in framework.leaves(target) if isinstance(leaf.placement, RankLocal)]
    own = {leaf.name: digest(leaf.data) for leaf in local} if leaves_own_alone(name) else {}
    method = make(name, framework)
    method.open(target)
    method.load(target, saved / name)
    method.close()
    found = {leaf: digest(data) for leaf, data in whole(framework, target).items()}
    expected = json.loads((saved / "saved.json").read_text())
    return verdict(
        different(expected, found, expected) + different(own, digests(framework, target), own)
    )


def assigned(framework: Jax, workload: Workload) -> str:
    """Give a state another one's leaves: it goes on like that, and nothing is compiled for it."""
    first, second = (trained(framework, workload, seed, 2) for seed in (1, 2))
    programs = compiled(first)
    leaves = {leaf.name: bytes(leaf.data) for leaf in framework.leaves(first)}
    some = dict(list(leaves.items())[::2])
    before = digests(framework, second)
    framework.assign(second, {name: memoryview(data) for name, data in some.items()})
    expected = before | {name: digest(data) for name, data in some.items()}
    wrong = different(expected, digests(framework, second), expected)
    framework.assign(second, {name: memoryview(data) for name, data in leaves.items()})
    train(framework, first, 2)
    train(framework, second, 2)
    expected = digests(framework, first)
    wrong += different(expected, digests(framework, second), expected)
    return verdict(wrong + ["compiled again"] * (compiled(second) != programs))


def compiled(state: State) -> tuple[int, int]:
    """How many programs there are of each half of a step."""
    return state.training.gradients._cache_size(), state.training.update._cache_size()


def copied(framework: Jax, state: State) -> State:
    """Return a new state with the leaves of another one."""
    copy = framework.build(state.workload, 3)
    framework.assign(
        copy, {leaf.name: memoryview(bytes(leaf.data)) for leaf in framework.leaves(state)}
    )
    return copy


def repeated(framework: Jax, workload: Workload) -> str:
    """Train twice."""
    once, again = (digests(framework, trained(framework, workload, 1, 3)) for _ in range(2))
    return verdict(different(once, again, once))


def replicas(framework: Jax, state: State) -> str:
    """Compare what is to be the same on all ranks."""
    own = {
        leaf.name: digest(leaf.data)
        for leaf in framework.leaves(state)
        if leaf.placement == Replicated()
    }
    first = WORLD.bcast(own)
    return verdict(different(first, own, first) if own else ["nothing is replicated"])


def whole(framework: Jax, state: State) -> dict[str, Bytes]:
    """Return all leaves but those of a rank alone as bytes, with the axes of the whole tensor and one for an element's bytes."""
    found = {}
    for leaf in framework.leaves(state):
        part = np.frombuffer(leaf.data, np.uint8).reshape(*leaf.shape, -1)
        if isinstance(leaf.placement, Shard):
            found[leaf.name] = joined(part, leaf.placement)
        elif leaf.placement == Replicated():
            found[leaf.name] = part.copy()
    return found


def joined(part: Bytes, placement: Shard) -> Bytes:
    """Return the tensor of which every rank has a part.

    Elements that no rank has are not a number.
    """
    tensor = np.full((*placement.global_shape, part.shape[-1]), 0xFF, np.uint8)
    for offset, other in WORLD.allgather((placement.offset, part)):
        tensor[
            tuple(
                slice(start, start + length)
                for start, length in zip(offset, other.shape, strict=False)
            )
        ] = other
    return tensor


def different(expected: dict[str, str], found: dict[str, str], names: object) -> list[str]:
    """Return which of the named leaves are not what they are to be."""
    return [name for name in names if found.get(name) != expected[name]]


def verdict(wrong: list[str]) -> str:
    """Return one line."""
    return ", ".join(wrong) or "equal"


def write(path: Path, found: dict[str, str]) -> None:
    """Write a file, once for all ranks."""
    if WORLD.rank == 0:
        path.write_text(json.dumps(found))


def write_arrays(path: Path, found: dict[str, Bytes]) -> None:
    """Write a file, once for all ranks."""
    if WORLD.rank == 0:
        np.savez(path, **found)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
