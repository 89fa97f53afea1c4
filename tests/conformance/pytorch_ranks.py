"""One rank of the PyTorch adapter's checks under mpirun: `pytorch_ranks.py train|save|load FOLDER`.

Rank 0 prints a line for each thing that was checked: "right", or what is wrong on any rank. `save`
leaves checkpoints that `load` reads, with another number of ranks.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import socket
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from declarations import must_be_named, writes_parts
from numpy.typing import NDArray
from test_pytorch import (
    METHODS,
    RESHARDED,
    STRATEGIES,
    WORKING,
    digests,
    make,
    opened,
    train,
    trained,
)

import workloads
from adapters.base import DirectIo, Leaf, Place, RankLocal, Replicated, Shard
from adapters.pytorch.framework import PyTorch
from adapters.pytorch.state import State
from workloads import Role, Workload
from workloads.datasets import Expression
from workloads.layers import Dense, Normal, Relu, Sequential

Whole = dict[str, NDArray[Any]]
Problems = list[str]

SAVED = {"ddp": ("resnet50",), "fsdp": ("llm-slice", "uneven")}

# Several ranks with a part of the batch each against one with all of it, in float32: only the order
# of the sums differs, by steps. A sum for an average, or a rank's own gradients, would show in
# Adam's moments, but hardly in weights: Adam rescales gradients.
MOMENT_TOLERANCE = {1: 1e-5, 10: 1e-4}  # of the largest element; found: 1.3e-6, 7.1e-6
# of steps times learning rate, about the way that a weight can have gone; found: 0.0037
WEIGHT_TOLERANCE = 0.01


@functools.cache
def ranks() -> Any:
    """Return all ranks.

    Not at the module's top: DCP's daemon imports this module too, and must not start MPI.
    """
    from mpi4py import MPI

    return MPI.COMM_WORLD


def small(name: str, dropout: float = 0.1) -> Workload:
    """Return a workload by name; "uneven" has rows that neither two nor four ranks can share evenly, and fewer than four."""
    if name == "uneven":
        layers = (
            ("first", Dense(9, 5, Normal(0.3))),
            ("relu", Relu()),
            ("last", Dense(5, 9, Normal(0.3))),
        )
        return replace(
            small("candle-mlp", dropout),
            name=name,
            model=Sequential(layers),
            data=Expression(genes=9),
        )
    return workloads.load(
        name, "small", workloads.precisions(name)[-1] if dropout else "float32", dropout
    )


@contextmanager
def started(strategy: str, folder: Path) -> Iterator[PyTorch]:
    """Start the framework among all ranks; a world of one has no strategy."""
    rendezvous = (
        ranks().bcast(("127.0.0.1", free_port()) if ranks().rank == 0 else None)
        if ranks().size > 1
        else None
    )
    framework = PyTorch()
    framework.start(
        Place(
            ranks().rank,
            ranks().size,
            "cpu",
            folder,
            DirectIo(False, 0, 0),
            rendezvous,
            ranks().rank,
            strategy,
        )
    )
    yield framework
    framework.stop()


def report(what: str, problems: Problems) -> None:
    """Print what any rank has found."""
    found = sorted({problem for rank in ranks().allgather(problems) for problem in rank})
    if ranks().rank == 0:
        print(f"{what}: {'; '.join(found[:5]) or 'right'}", flush=True)


def check_training(folder: Path) -> None:
    """Train by every strategy."""
    for strategy in STRATEGIES:
        with started(strategy, folder) as framework:
            for name in ("resnet50", "llm-slice", "uneven"):
                report(f"{strategy} builds {name}", wrong_values(framework, small(name)))
                report(f"{strategy} trains {name}", wrong_training(framework, small(name)))
            for name in ("candle-mlp", "llm-slice"):
                report(
                    f"{strategy} averages over {name}",
                    wrong_averages(framework, small(name, dropout=0.0)),
                )


def wrong_values(framework: PyTorch, workload: Workload) -> Problems:
    """A new state has the workload's first values, whichever rank holds them, and its shards lie side by side."""
    first = whole(framework, framework.build(workload, 3))
    for variable in workload.parameters:
        name = (
            f"optimizer/master/{variable.name}"
            if workload.master_weights
            else f"weights/{variable.name}"
        )
        if not np.array_equal(first.pop(name), workload.initial(variable.name, 3)):
            return [f"{name} starts otherwise"]
    return []


def wrong_training(framework: PyTorch, workload: Workload) -> Problems:
    """Ranks agree on what they share and on nothing else, training is repeatable, leaves can be given back, memory is freed."""
    # in a step of its own it rebuilds its buckets, as `state` has done
    steps = 1 if framework.place.strategy == "ddp" else 0
    state, again = (trained(framework, workload, 1, 3) for _ in range(2))
    other = trained(framework, workload, 2, steps)
    values = bytes_of(framework, state)
    problems = different_views(framework, state)
    problems += [
        f"{name} is not repeatable"
        for name, data in bytes_of(framework, again).items()
        if data != values[name]
    ]
    framework.assign(other, {name: memoryview(data) for name, data in values.items()})
    problems += [
        f"{name} was not assigned"
        for name, data in bytes_of(framework, other).items()
        if data != values[name]
    ]
    for one in (state, other):
        train(framework, one, 1)
    problems += differing(digests(framework, state), digests(framework, other), "goes on otherwise")
    alive = weakref.ref(next(state.trained.parameters()))
    del state, again, other, one
    gc.collect()
    return problems + ["a state that nobody has is still alive"] * (alive() is not None)


def different_views(framework: PyTorch, state: State) -> Problems:
    """Return replicated leaves that differ between the ranks, and rank-local ones of random generators that do not."""
    views = ranks().allgather(digests(framework, state))
    problems = []
    for leaf in framework.leaves(state):
        distinct = len({view[leaf.name] for view in views})
        if leaf.placement == Replicated() and distinct != 1:
            problems.append(f"{leaf.name} differs between the ranks")
        if leaf.placement == RankLocal() and distinct != ranks().size:
            problems.append(f"{leaf.name} is the same on several ranks")
    return problems


def wrong_averages(framework: PyTorch, workload: Workload) -> Problems:
    """Compare with one process that has the whole batch."""
    alone = PyTorch()
    alone.start(replace(framework.place, rank=0, world=1, rendezvous=None, strategy=""))
    states = framework.build(workload, 1), alone.build(workload, 1)
    problems = []
    for steps in (1, 10):
        for each, state in zip((framework, alone), states, strict=True):
            train(each, state, steps - state.step)
        ours, theirs = (
            whole(framework, states[0]),
            {leaf.name: array_of(leaf) for leaf in alone.leaves(states[1])},
        )
        if [leaf.name for leaf in framework.leaves(states[0])] != [
            leaf.name for leaf in alone.leaves(states[1])
        ]:
            problems.append("the leaves have other names")
        for name, values in ours.items():
            difference = float(np.abs(values.astype(np.float64) - theirs[name]).max())
            if difference > tolerance(name, theirs[name], steps, workload):
                problems.append(f"{name} is off by {difference:.1e} after {steps} steps")
    return problems


def tolerance(name: str, values: NDArray[Any], steps: int, workload: Workload) -> float:
    """Return how far a leaf may be off."""
    if name.startswith("weights/"):
        return WEIGHT_TOLERANCE * steps * workload.optimizer.learning_rate
    return MOMENT_TOLERANCE[steps] * float(np.abs(values).max())


def check_saving(folder: Path) -> None:
    """Save by every method and load with the same ranks; keep what another number of ranks is to load."""
    for strategy, name in saved_states():
        with started(strategy, folder) as framework:
            state, target = (
                trained(framework, small(name), 1, 2),
                trained(framework, small(name), 2, 1),
            )
            for method in methods_for(strategy):
                path = folder / strategy / name / method
                report(
                    f"{method} under {strategy} with {name}",
                    wrong_restore(framework, state, target, method, path),
                )


def wrong_restore(
    framework: PyTorch, state: State, target: State, name: str, path: Path
) -> Problems:
    """Save behind a training step, load into another state, and name what did not come back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    covered = [
        leaf.name
        for leaf in framework.leaves(state)
        if METHODS[name].get("rank_local") or leaf.placement != RankLocal()
    ]
    saved, expected = digests(framework, state), whole(framework, state)
    if ranks().rank == 0:
        path.with_suffix(".expected").write_bytes(pickle.dumps(expected))
    method = make(name, framework)
    with opened(method, state):
        pending = method.save(state, path)
        framework.gradients(state)
        pending.staged()
        framework.update(state)
        pending.finished()
        ranks().barrier()
        problems = wrong_entries(framework, name, state, path)
        method.load(target, path)
    loaded = digests(framework, target)
    # two steps between checkpoints: one after a load leads to no other's values
    train(framework, state, 1)
    train(framework, target, 1)  # the ranks can still work together
    return problems + [
        f"{leaf} did not come back" for leaf in covered if loaded[leaf] != saved[leaf]
    ]


def wrong_entries(framework: PyTorch, name: str, state: State, path: Path) -> Problems:
    """A tensor lies in the checkpoint once, or in the file of every rank where each keeps to itself; no padding goes with it."""
    entries = list(make(name, framework).entries(path))
    copies = 1 if name in RESHARDED else ranks().size
    expected: Counter[Role | None] = Counter()
    found: Counter[Role | None] = Counter()
    for leaf in framework.leaves(state):
        sharded = isinstance(leaf.placement, Shard)
        expected[leaf.role] += (
            ranks().allreduce(leaf.data.nbytes) if sharded else copies * leaf.data.nbytes
        )
    for entry in entries:
        found[entry.role] += entry.raw_bytes
    wrong = [role for role in (Role.WEIGHT, Role.OPTIMIZER) if found[role] != expected[role]]
    files = {entry.file for entry in entries}
    writers = ranks().size if writes_parts(METHODS[name]) else 1
    return [f"entries of role {role}" for role in wrong] + (
        [] if len(files) == writers else [f"{len(files)} files"]
    )


def check_loading(folder: Path) -> None:
    """Load what another number of ranks has saved."""
    for strategy, name in saved_states():
        with started(strategy if ranks().size > 1 else "", folder) as framework:
            target = trained(framework, small(name), 2, 1)
            for method in methods_for(strategy):
                path = folder / strategy / name / method
                check = wrong_reshard if method in RESHARDED else wrong_refusal
                report(
                    f"{method} under {strategy} with {name}", check(framework, target, method, path)
                )


def wrong_reshard(framework: PyTorch, target: State, name: str, path: Path) -> Problems:
    """Name the leaves that are not what all ranks together had saved."""
    method = make(name, framework)
    with opened(method, target):
        method.load(target, path)
    expected, found = (
        pickle.loads(path.with_suffix(".expected").read_bytes()),
        whole(framework, target),
    )
    train(framework, target, 1)
    return [
        f"{leaf} is another" for leaf in expected if not np.array_equal(found[leaf], expected[leaf])
    ]


def wrong_refusal(framework: PyTorch, target: State, name: str, path: Path) -> Problems:
    """A method that cannot load with another number of ranks says so."""
    try:
        make(name, framework).load(target, path)
    except FileNotFoundError:
        return []
    return ["it was loaded"]


def saved_states() -> Iterator[tuple[str, str]]:
    """Yield the strategies and workloads of which checkpoints are made."""
    return ((strategy, name) for strategy, names in SAVED.items() for name in names)


def methods_for(strategy: str) -> list[str]:
    """Return the methods that can save what the strategy leaves to a rank."""
    fitting = [
        name
        for name in WORKING
        if METHODS[name].get("takes_shards") or not STRATEGIES[strategy].get("sharded")
    ]
    return [name for name in fitting if not must_be_named(METHODS[name])]


def whole(framework: PyTorch, state: State) -> Whole:
    """Put together what the ranks hold of the leaves that are no rank's own."""
    gathered: Whole = {}
    for leaf in framework.leaves(state):
        if leaf.placement == Replicated():
            gathered[leaf.name] = array_of(leaf).copy()
        elif isinstance(leaf.placement, Shard):
            gathered[leaf.name] = joined(ranks().allgather((leaf.placement, array_of(leaf))))
    return gathered


def joined(parts: list[tuple[Shard, NDArray[Any]]]) -> NDArray[Any]:
    """Put shards side by side; fails where they overlap or leave a gap."""
    shape = parts[0][0].global_shape
    values, times = np.zeros(shape, parts[0][1].dtype), np.zeros(shape, int)
    for shard, part in parts:
        place = tuple(
            slice(start, start + size) for start, size in zip(shard.offset, part.shape, strict=True)
        )
        values[place] = part
        times[place] += 1
    assert (times == 1).all()
    return values


def array_of(leaf: Leaf) -> NDArray[Any]:
    """Return a leaf as an array; of bfloat16, which numpy lacks, the bits."""
    return np.frombuffer(leaf.data, leaf.dtype.replace("bfloat16", "uint16")).reshape(leaf.shape)


def bytes_of(framework: PyTorch, state: State) -> dict[str, bytes]:
    """Return the bytes of every leaf on this rank."""
    return {leaf.name: bytes(leaf.data) for leaf in framework.leaves(state)}


def differing(first: dict[str, str], second: dict[str, str], how: str) -> Problems:
    """Name the leaves whose digests differ."""
    return [f"{name} {how}" for name in first if first[name] != second[name]]


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


CHECKS: dict[str, Callable[[Path], None]] = {
    "train": check_training,
    "save": check_saving,
    "load": check_loading,
}


def main(check: str, folder: Path) -> None:
    """Check, and leave together."""
    from mpi4py import MPI

    CHECKS[check](folder)
    ranks().barrier()
    MPI.Finalize()
    os._exit(0)  # a normal exit aborts now and then, in a thread of the process group


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
