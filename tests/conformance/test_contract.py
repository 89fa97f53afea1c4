"""A framework holds the workload's state under the names, types and first values that it has."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from subject import (
    SUBJECT,
    copied_leaves,
    digests,
    item_bytes,
    new_method,
    same,
    shape_of,
    train,
    trained,
)

import workloads
from adapters.base import Coverage, Method
from adapters.shared.quirks import Quirks
from workloads import Role, Workload

QUIRKS = SUBJECT.quirks
# bfloat16 has 8 bits of precision, and a framework may round or cut.
BFLOAT16_ERROR = 2**-7
ALL_CASES = [
    f"{name}-{precision}" for name in workloads.names() for precision in workloads.precisions(name)
]

each_case = pytest.mark.parametrize("case", SUBJECT.cases)


def test_the_quirks_are_those_that_the_suite_asks_for() -> None:
    overridden = {name for name in vars(type(QUIRKS)) if not name.startswith("_")}
    assert {name for name in overridden if not hasattr(Quirks, name)} == set()


def test_every_declared_method_can_be_made(framework: Any) -> None:
    for name, declared in SUBJECT.methods.items():
        assert isinstance(new_method(name, framework), Method)
        assert declared["covers"] in list(Coverage)
    for declared in SUBJECT.stores.values():
        assert declared["covers"] in list(Coverage)


@pytest.mark.parametrize("case", ALL_CASES)
def test_a_workload_that_cannot_be_held_is_refused_for_a_reason(case: str) -> None:
    workload = SUBJECT.workload(case)
    reason = SUBJECT.framework_class.unsupported(workload, "cpu")
    expected = QUIRKS.refused_precisions.get(workload.precision)
    if expected is None:
        assert reason is None
    else:
        assert re.fullmatch(expected, reason or "")


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="there is a GPU")
@each_case
def test_a_gpu_that_is_not_there_is_the_reason(case: str) -> None:
    reason = SUBJECT.framework_class.unsupported(SUBJECT.workload(case), "cuda")
    assert re.search(QUIRKS.without_gpu, reason or "")


@each_case
def test_the_leaves_are_those_of_the_workload(framework: Any, case: str) -> None:
    workload = SUBJECT.workload(case)
    leaves = [shape_of(leaf) for leaf in framework.leaves(framework.build(workload, 1))]
    names = {name for name, *_ in leaves}
    assert len(names) == len(leaves)
    expected = {(leaf.name, leaf.role, leaf.dtype, leaf.shape) for leaf in workload.leaf_specs()}
    assert expected <= set(leaves)
    added = names - {name for name, *_ in expected}
    allowed = re.compile("|".join(QUIRKS.added_leaves))
    assert {name for name in added if not allowed.fullmatch(name)} == set()
    assert required_leaves(workload) <= names
    assert [name for name, role, *_ in leaves if role is not workloads.role_of(name)] == []


def required_leaves(workload: Workload) -> set[str]:
    """Return the leaves that the quirks ask for."""
    return {
        pattern.replace("{parameter}", variable.name)
        for pattern in QUIRKS.required_leaves
        for variable in workload.parameters
    }


@each_case
def test_the_bytes_of_a_leaf_are_those_of_its_type_and_shape(framework: Any, case: str) -> None:
    for leaf in framework.leaves(framework.build(SUBJECT.workload(case), 1)):
        assert leaf.dtype in QUIRKS.dtypes
        assert leaf.data.format == "B"
        assert leaf.data.nbytes == item_bytes(leaf.dtype) * math.prod(leaf.shape)


@each_case
def test_a_new_state_has_the_first_values_of_the_workload(framework: Any, case: str) -> None:
    workload = SUBJECT.workload(case)
    leaves = copied_leaves(framework, framework.build(workload, 3))
    for variable in workload.buffers:
        initial = workload.initial(variable.name, 3)
        assert leaves[f"buffers/{variable.name}"] == initial.tobytes()
    for variable in workload.parameters:
        initial = workload.initial(variable.name, 3)
        weight = leaves[f"weights/{variable.name}"]
        if not workload.master_weights:
            assert weight == initial.tobytes()
            continue
        widened = (np.frombuffer(weight, np.uint16).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(widened, initial.reshape(-1), rtol=BFLOAT16_ERROR)
        if QUIRKS.fills_master_weights:
            assert leaves[f"optimizer/master/{variable.name}"] == initial.tobytes()


@each_case
def test_the_leaves_do_not_depend_on_the_step(framework: Any, case: str) -> None:
    state = framework.build(SUBJECT.workload(case), 1)
    before = [shape_of(leaf) for leaf in framework.leaves(state)]
    train(framework, state, 1)
    assert [shape_of(leaf) for leaf in framework.leaves(state)] == before


@each_case
def test_every_leaf_differs_between_seeds_and_steps(
    lasting_framework: Any, prepared: Any, case: str
) -> None:
    first = digests(lasting_framework, prepared(case, 1))
    second = digests(lasting_framework, prepared(case, 2))
    assert same(first, second) == set()


@each_case
def test_training_is_repeatable(
    lasting_framework: Any, prepared: Any, framework: Any, case: str
) -> None:
    once = digests(lasting_framework, prepared(case, 1))
    again = digests(framework, trained(framework, SUBJECT.workload(case), 1, 3))
    assert once == again


@each_case
def test_gradients_leave_the_weights_and_slots_alone(
    lasting_framework: Any, prepared: Any, case: str
) -> None:
    state = prepared(case, 1)
    before = digests(lasting_framework, state)
    lasting_framework.gradients(state)
    changed = before.keys() - same(before, digests(lasting_framework, state))
    assert {name for name in changed if not name.startswith(("buffers/", "rng/"))} == set()


@pytest.mark.skipif(not QUIRKS.learns, reason="nothing is learnt")
@each_case
def test_the_loss_falls(framework: Any, case: str) -> None:
    losses = train(framework, framework.build(SUBJECT.workload(case), 1), 100)
    assert sum(losses[-10:]) < 0.85 * sum(losses[:10])


def is_weight(name: str, index: int) -> bool:
    return name.startswith("weights/")


def is_of_the_optimizer(name: str, index: int) -> bool:
    return name.startswith("optimizer/")


def is_every_second(name: str, index: int) -> bool:
    return index % 2 == 0


@pytest.mark.parametrize("choice", [is_weight, is_of_the_optimizer, is_every_second])
@each_case
def test_leaves_that_are_not_assigned_stay(
    lasting_framework: Any, prepared: Any, case: str, choice: Any
) -> None:
    state, target = prepared(case, 1), prepared(case, 2)
    before = digests(lasting_framework, target)
    values = copied_leaves(lasting_framework, state)
    some = {name: data for i, (name, data) in enumerate(values.items()) if choice(name, i)}
    programs = QUIRKS.compiled_programs(target)
    lasting_framework.assign(target, {name: memoryview(data) for name, data in some.items()})
    after = digests(lasting_framework, target)
    assert same(after, digests(lasting_framework, state)) == some.keys()
    assert same(after, before) == before.keys() - some.keys()
    assert QUIRKS.compiled_programs(target) == programs


@each_case
def test_a_state_that_is_given_all_leaves_of_another_goes_on_like_it(
    lasting_framework: Any, prepared: Any, case: str
) -> None:
    state, target = prepared(case, 1), prepared(case, 2)
    lasting = QUIRKS.lasting_objects(target)
    programs = QUIRKS.compiled_programs(state), QUIRKS.compiled_programs(target)
    copies = {
        name: bytearray(data) for name, data in copied_leaves(lasting_framework, state).items()
    }
    lasting_framework.assign(target, {name: memoryview(data) for name, data in copies.items()})
    # The memory belongs to the caller again, who may change it.
    for data in copies.values():
        data[:] = bytes(len(data))
    assert digests(lasting_framework, target) == digests(lasting_framework, state)
    assert replaced(lasting, QUIRKS.lasting_objects(target)) == []
    train(lasting_framework, state, 2)
    train(lasting_framework, target, 2)
    assert digests(lasting_framework, target) == digests(lasting_framework, state)
    assert (QUIRKS.compiled_programs(state), QUIRKS.compiled_programs(target)) == programs


def replaced(before: Any, after: Any) -> list[str]:
    """Return the names of objects that are no longer the same."""
    return [name for name in before if before[name] is not after[name]]


def test_an_unknown_leaf_cannot_be_assigned(framework: Any) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    with pytest.raises(KeyError, match="weights/unknown"):
        framework.assign(state, {"weights/unknown": memoryview(b"")})


@each_case
def test_leaves_of_some_roles_alone_are_the_same(framework: Any, case: str) -> None:
    state = framework.build(SUBJECT.workload(case), 3)
    everything = {leaf.name: (leaf.role, bytes(leaf.data)) for leaf in framework.leaves(state)}
    for roles in ({Role.BUFFER, Role.RNG}, {Role.WEIGHT}, set()):
        some = {leaf.name: (leaf.role, bytes(leaf.data)) for leaf in framework.leaves(state, roles)}
        assert some == {name: each for name, each in everything.items() if each[0] in roles}
