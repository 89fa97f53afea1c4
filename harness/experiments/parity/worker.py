"""A few steps of training in numbers that those of other frameworks are compared with.

Never timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from adapters.base import Leaf
from harness.experiments.parity.records import ExtraLeaf, LeafSample, TrajectoryRecord
from harness.wire.case import Case
from harness.worker.bench import Bench, Entries
from harness.worker.numbers import numbers_of
from harness.worker.verify import listed
from workloads import LeafSpec, Role, Workload

STEPS = 10
_ELEMENTS_SAMPLED = 16  # of a leaf


class AnotherState(Exception):
    """The framework's state is not the workload's: other leaves, or other first values."""


def run_trajectories(bench: Bench, entries: Entries) -> None:
    """Train from the beginning for every task. Only one of them can have this state."""
    bench.attempt(entries, lambda task: run_trajectory(bench, task.case))


def run_trajectory(bench: Bench, case: Case) -> None:
    """Check the first state against the workload, then train and record the numbers."""
    assert isinstance(bench.workload, Workload)
    framework = bench.framework
    state = bench.state
    with bench.phase("verify"):
        extra = check_first_state(bench.workload, framework.leaves(state), bench.job.seed)
    with bench.phase("train"):
        framework.gradients(state)
        losses = [framework.loss(state)]
        forward = samples(framework.leaves(state), {Role.BUFFER})
        framework.update(state)
        extra_names = {leaf.name for leaf in extra}
        updated = samples(framework.leaves(state), {Role.WEIGHT, Role.OPTIMIZER}, extra_names)
        for _ in range(STEPS - 1):
            framework.gradients(state)
            losses.append(framework.loss(state))
            framework.update(state)
    record = TrajectoryRecord(
        kind="trajectory",
        **bench.identity(case),
        leaves=len(bench.workload.leaf_specs()),
        extra=extra,
        losses=tuple(losses),
        forward=forward,
        updated=updated,
    )
    bench.output.write(record)


def check_first_state(
    workload: Workload, leaves: Iterable[Leaf], seed: int
) -> tuple[ExtraLeaf, ...]:
    """Return the leaves beyond the workload's own.

    Raise AnotherState unless each leaf of the workload is there with its role, dtype, shape and,
    bit by bit, its first value. Weights and buffers start as the workload draws them from `seed`,
    master weights like the weights before rounding, and other optimizer slots at zero.
    """
    specs = {spec.name: spec for spec in workload.leaf_specs()}
    extra = []
    for leaf in leaves:
        spec = specs.pop(leaf.name, None)
        if spec is None:
            extra.append(ExtraLeaf(leaf.name, str(leaf.role), leaf.dtype, tuple(leaf.shape)))
            continue
        actual = _described(leaf.role, leaf.dtype, leaf.shape)
        wanted = _described(spec.role, spec.dtype, spec.shape)
        if actual != wanted:
            raise AnotherState(f"{leaf.name} is {actual}, and the workload has {wanted}")
        if bytes(leaf.data) != _first_bytes(workload, spec, seed):
            raise AnotherState(f"{leaf.name} does not start with the workload's values")
    if specs:
        raise AnotherState(f"leaves are missing: {listed(sorted(specs))}")
    # A framework may count its updates in a scalar of its own beside the weights.
    unexpected = [
        leaf.name for leaf in extra if leaf.role in (Role.WEIGHT, Role.BUFFER) and leaf.shape
    ]
    if unexpected:
        raise AnotherState(f"weights that the workload does not have: {listed(unexpected)}")
    return tuple(extra)


def samples(
    leaves: Iterable[Leaf], roles: set[Role], leave_out: Iterable[str] = ()
) -> tuple[LeafSample, ...]:
    """Return samples of the leaves of these roles, in the order of their names."""
    left_out = set(leave_out)
    sampled = [_sample(leaf) for leaf in leaves if leaf.role in roles and leaf.name not in left_out]
    return tuple(sorted(sampled, key=lambda sample: sample.name))


def _described(role: Role, dtype: str, shape: Sequence[int]) -> str:
    return f"{role} {dtype}{list(shape)}"


def _sample(leaf: Leaf) -> LeafSample:
    numbers = numbers_of(leaf.data, leaf.dtype)
    spaced = np.linspace(0, len(numbers) - 1, _ELEMENTS_SAMPLED)
    positions = np.unique(spaced.astype(int))
    rms = float(np.sqrt(np.mean(np.square(numbers)))) if len(numbers) else 0.0
    return LeafSample(leaf.name, rms, tuple(float(value) for value in numbers[positions]))


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
    last_bit_kept = (bits >> 16) & 1
    return ((bits + 0x7FFF + last_bit_kept) >> 16).astype("<u2").tobytes()


STAGES = {"train": run_trajectories}
