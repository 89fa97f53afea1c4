"""A few steps of training, in numbers that other frameworks' can be held against. Never timed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from adapters.base import Leaf
from harness.experiments.parity.records import ExtraLeaf, LeafSample, TrajectoryRecord
from harness.wire.case import Case
from harness.worker import verify
from harness.worker.bench import Bench, Entries
from harness.worker.numbers import numbers_of
from workloads import LeafSpec, Role, Workload

STEPS = 10
_SAMPLED = 16  # elements of a leaf


class AnotherState(Exception):
    """The framework's state is not the workload's: other leaves, or other first values."""


def run_trajectory(bench: Bench, case: Case) -> None:
    """Check the first state against the workload, then train and record what came of it."""
    assert bench.workload is not None
    framework = bench.framework
    bench.output.enter("verify")
    extra = check_first_state(bench.workload, framework.leaves(bench.state), bench.job.seed)
    bench.output.enter("train")
    framework.gradients(bench.state)
    losses = [framework.loss(bench.state)]
    forward = samples(framework.leaves(bench.state), {Role.BUFFER})
    framework.update(bench.state)
    updated = samples(
        framework.leaves(bench.state), {Role.WEIGHT, Role.OPTIMIZER}, {leaf.name for leaf in extra}
    )
    for _ in range(STEPS - 1):
        framework.gradients(bench.state)
        losses.append(framework.loss(bench.state))
        framework.update(bench.state)
    bench.output.write(
        TrajectoryRecord(
            kind="trajectory",
            case=case.id,
            process=bench.job.process,
            rank=bench.world.rank,
            leaves=len(bench.workload.leaf_specs()),
            extra=extra,
            losses=tuple(losses),
            forward=forward,
            updated=updated,
        )
    )


def check_first_state(
    workload: Workload, leaves: Iterable[Leaf], seed: int
) -> tuple[ExtraLeaf, ...]:
    """Return the leaves beyond the workload's own.

    Raises AnotherState unless the workload's are all there with their dtypes, shapes and, bit by
    bit, their first values: weights and buffers as the workload draws them from `seed`, master
    weights like the weights before rounding, other slots zero.
    """
    specs = {spec.name: spec for spec in workload.leaf_specs()}
    extra = []
    for leaf in leaves:
        spec = specs.pop(leaf.name, None)
        if spec is None:
            extra.append(ExtraLeaf(leaf.name, str(leaf.role), leaf.dtype, tuple(leaf.shape)))
            continue
        found, wanted = (
            (leaf.role, leaf.dtype, tuple(leaf.shape)),
            (spec.role, spec.dtype, spec.shape),
        )
        if found != wanted:
            raise AnotherState(f"{leaf.name} is {found}, and the workload has {wanted}")
        if bytes(leaf.data) != _first_bytes(workload, spec, seed):
            raise AnotherState(f"{leaf.name} does not start with the workload's values")
    if specs:
        raise AnotherState(f"leaves are missing: {verify.listed(sorted(specs))}")
    unexpected = [
        leaf.name for leaf in extra if leaf.role in (Role.WEIGHT, Role.BUFFER) and leaf.shape
    ]
    if unexpected:
        raise AnotherState(f"weights that the workload does not have: {verify.listed(unexpected)}")
    return tuple(extra)


def samples(
    leaves: Iterable[Leaf], roles: set[Role], leave_out: Iterable[str] = ()
) -> tuple[LeafSample, ...]:
    """Sample the leaves of these roles, in the order of their names."""
    left_out = set(leave_out)
    found = [_sample(leaf) for leaf in leaves if leaf.role in roles and leaf.name not in left_out]
    return tuple(sorted(found, key=lambda sample: sample.name))


def _sample(leaf: Leaf) -> LeafSample:
    numbers = numbers_of(leaf.data, leaf.dtype)
    places = np.unique(np.linspace(0, len(numbers) - 1, _SAMPLED).astype(int))
    rms = float(np.sqrt(np.mean(np.square(numbers)))) if len(numbers) else 0.0
    return LeafSample(leaf.name, rms, tuple(float(value) for value in numbers[places]))


def _first_bytes(workload: Workload, spec: LeafSpec, seed: int) -> bytes:
    part, _, name = spec.name.partition("/")
    if part == "optimizer":
        slot, _, name = name.partition("/")
        if slot != "master":
            return bytes(4 * int(np.prod(spec.shape)))
    first = workload.initial(name, seed)
    return _to_bfloat16(first) if spec.dtype == "bfloat16" else first.tobytes()


def _to_bfloat16(values: NDArray[np.float32]) -> bytes:
    """Round to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def run_trajectories(bench: Bench, entries: Entries) -> None:
    """Train from the beginning for every task. Only one of them can have this state."""
    bench.attempt(entries, lambda task: run_trajectory(bench, task.case))


STAGES = {"train": run_trajectories}
