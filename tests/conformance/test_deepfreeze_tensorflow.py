"""DeepFreeze in TensorFlow: variables are saved from their memory, and loaded into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from deepfreeze_loads import load_breaks_off, load_finds_damage, read_in_small_blocks  # noqa: E402
from safetensors import safe_open  # noqa: E402
from test_tensorflow import make, opened, trained  # noqa: E402

import workloads  # noqa: E402
from adapters.base import DirectIo, Place  # noqa: E402
from adapters.deepfreeze.arrivals import Arrival  # noqa: E402
from adapters.deepfreeze.tensor import Spec  # noqa: E402
from adapters.tensorflow import deepfreeze, recycling  # noqa: E402
from adapters.tensorflow.framework import TensorFlow  # noqa: E402
from adapters.tensorflow.state import State  # noqa: E402

LARGE_BYTES = 1 << 14


@pytest.fixture
def framework(tmp_path: Path) -> Iterator[TensorFlow]:
    framework = TensorFlow()
    framework.start(
        Place(
            rank=0,
            world=1,
            device="cpu",
            temporary=tmp_path,
            io=DirectIo(False, 0, 0),
            memory=tmp_path / "memory",
        )
    )
    yield framework
    framework.stop()


def addresses(state: State) -> dict[str, int]:
    values = {name: variable.value() for name, variable in state.plain_variables().items()}
    large = {
        name: value
        for name, value in values.items()
        if value.dtype.size * value.shape.num_elements() >= LARGE_BYTES
    }
    return {
        name: np.frombuffer(memoryview(tf.bitcast(value, tf.uint8)), np.uint8).ctypes.data
        for name, value in large.items()
    }


def values(state: State) -> dict[str, bytes]:
    return {name: variable.numpy().tobytes() for name, variable in state.plain_variables().items()}


def train(framework: TensorFlow, state: State) -> None:
    framework.gradients(state)
    framework.update(state)


@pytest.mark.parametrize("precision", ["float32", "bf16-mixed"])
def test_saves_and_loads_go_by_the_variables_own_memory(
    framework: TensorFlow, tmp_path: Path, precision: str
) -> None:
    state = trained(framework, workloads.load("llm-slice", "small", precision), 1, 1)
    method = make("deepfreeze", framework)
    with opened(method, state):
        own, saved = addresses(state), values(state)
        if precision == "float32":  # the sources of bfloat16 are copies
            assert {
                name: source.look_up().ctypes.data
                for name, source in method.sources(state).items()
                if name in own
            } == own
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state)
        assert values(state) != saved
        own = addresses(state)
        method.load(state, tmp_path / "checkpoint")
        assert addresses(state) == own
        assert values(state) == saved
        train(framework, state)
        # weights of bfloat16 get new memory in any step
        slots = [name for name in own if name.startswith("optimizer/")]
        assert [addresses(state)[name] for name in slots] == [own[name] for name in slots], (
            "nobody holds the values any more"
        )


def test_large_values_without_targets_lie_in_one_piece(
    framework: TensorFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of variables on a GPU."""
    monkeypatch.setattr(recycling, "_is_here", lambda variable: False)
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 1)
    method = make("deepfreeze", framework)
    with opened(method, state):
        own, saved = addresses(state), values(state)
        method.save(state, tmp_path / "checkpoint").finished()
        method.load(state, tmp_path / "checkpoint")
    loaded = sorted(addresses(state).values())
    assert not set(loaded) & set(own.values())
    assert loaded[-1] - loaded[0] < (tmp_path / "checkpoint" / "model.safetensors").stat().st_size
    assert values(state) == saved


def test_a_load_changes_no_value_that_somebody_else_has(
    framework: TensorFlow, tmp_path: Path
) -> None:
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 1)
    method = make("deepfreeze", framework)
    with opened(method, state):
        saved = values(state)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state)
        held, then = (
            {name: variable.value() for name, variable in state.plain_variables().items()},
            values(state),
        )
        assert then != saved
        method.load(state, tmp_path / "checkpoint")
    assert {name: value.numpy().tobytes() for name, value in held.items()} == then
    assert values(state) == saved


def test_a_load_into_another_state_than_the_opened_one_changes_no_value_of_either(
    framework: TensorFlow, tmp_path: Path
) -> None:
    workload = workloads.load("candle-mlp", "small")
    state, other = trained(framework, workload, 1, 1), trained(framework, workload, 2, 2)
    method = make("deepfreeze", framework)
    with opened(method, state):
        saved, then = values(state), values(other)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state)
        own, held = (
            values(state),
            {name: variable.value() for name, variable in other.plain_variables().items()},
        )
        method.load(other, tmp_path / "checkpoint")
    assert values(other) == saved
    assert values(state) == own
    assert {name: value.numpy().tobytes() for name, value in held.items()} == then


def test_a_variable_that_hands_out_copies_is_loaded(framework: TensorFlow, tmp_path: Path) -> None:
    """TensorFlow makes one of every variable that is gathered from."""
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 1)
    variable = max(
        state.plain_variables().values(), key=lambda variable: variable.shape.num_elements()
    )
    tf.raw_ops.ResourceGather(resource=variable.handle, indices=[0], dtype=variable.dtype)
    method = make("deepfreeze", framework)
    with opened(method, state):
        saved = values(state)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state)
        assert values(state) != saved
        method.load(state, tmp_path / "checkpoint")
    assert values(state) == saved


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_load_during_a_save_takes_nothing_from_it(
    framework: TensorFlow, tmp_path: Path, is_staged: bool
) -> None:
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 1)
    method = make("deepfreeze", framework)
    with opened(method, state):
        first = values(state)
        method.save(state, tmp_path / "first").finished()
        train(framework, state)
        second, own = values(state), addresses(state)
        pending = method.save(state, tmp_path / "second")
        if is_staged:
            pending.staged()
        method.load(state, tmp_path / "first")
        assert values(state) == first
        assert addresses(state) == own
        pending.finished()
        method.load(state, tmp_path / "second")
    assert values(state) == second


def test_a_load_into_memory_that_breaks_off_leaves_no_thread_reading(
    framework: TensorFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_small_blocks(monkeypatch)
    state = trained(framework, workloads.load("resnet50", "small"), 1, 1)
    method = make("deepfreeze", framework)
    with opened(method, state):
        load_breaks_off(method, state, tmp_path / "checkpoint", Arrival, "check", monkeypatch)


def test_a_variable_without_elements_is_left_as_it_is() -> None:
    variables = {"none": tf.Variable(tf.zeros((0, 4))), "one": tf.Variable(tf.ones(3))}
    recycled = recycling.Recycling(variables)
    assert recycled.take(
        lambda: {name: variable.value() for name, variable in variables.items()}
    ).keys() == {"one"}


def test_a_load_that_finds_damage_leaves_a_state_that_trains(
    framework: TensorFlow, tmp_path: Path
) -> None:
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 1)
    method = make("deepfreeze", framework)
    with opened(method, state):
        load_finds_damage(method, state, tmp_path / "checkpoint")
    train(framework, state)


def test_the_step_behind_a_save_still_works_in_place(framework: TensorFlow, tmp_path: Path) -> None:
    """TensorFlow gives a variable new memory where somebody holds its value: staged() must have let go of all."""
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 2)
    method = make("deepfreeze", framework)
    with opened(method, state):
        before = addresses(state)
        pending = method.save(state, tmp_path / "checkpoint")
        framework.gradients(state)
        pending.staged()
        framework.update(state)
        assert addresses(state) == before
        pending.finished()


def test_the_library_finds_every_variable(framework: TensorFlow, tmp_path: Path) -> None:
    state = trained(framework, workloads.load("resnet50", "small"), 1, 2)
    method = make("deepfreeze", framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
    expected = {name: variable.numpy() for name, variable in state.plain_variables().items()}
    with safe_open(tmp_path / "checkpoint" / "model.safetensors", "np") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    assert found.keys() == expected.keys()
    assert all(
        found[name].dtype == value.dtype and np.array_equal(found[name], value)
        for name, value in expected.items()
    )


def test_a_load_that_breaks_off_leaves_no_thread_reading(
    framework: TensorFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_small_blocks(monkeypatch)
    # as if the variables were a GPU's
    monkeypatch.setattr(recycling, "_is_here", lambda variable: False)
    state = trained(framework, workloads.load("resnet50", "small"), 1, 1)
    method = make("deepfreeze", framework)
    with opened(method, state):
        load_breaks_off(method, state, tmp_path / "checkpoint", deepfreeze, "_tensor", monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_empty_tensor_comes_back(dtype: str) -> None:
    assert deepfreeze._tensor(
        np.empty(0, np.uint8), Spec("optimizer/none", dtype, (0, 4))
    ).shape == (0, 4)
