"""DeepFreeze with TensorFlow's variables, from whose memory it saves and into which it loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from deepfreeze_loads import load_breaks_off, read_in_small_blocks
from subject import SUBJECT, new_method, opened, train, trained

import workloads
from adapters.deepfreeze.tensor import Spec
from adapters.tensorflow import deepfreeze, recycling
from adapters.tensorflow.framework import TensorFlow
from adapters.tensorflow.state import State

addresses = SUBJECT.quirks.addresses


def values(state: State) -> dict[str, bytes]:
    return {name: variable.numpy().tobytes() for name, variable in state.plain_variables().items()}


@pytest.mark.parametrize("precision", ["float32", "bf16-mixed"])
def test_saves_and_loads_go_by_the_variables_own_memory(
    framework: TensorFlow, tmp_path: Path, precision: str
) -> None:
    state = trained(framework, workloads.load("llm-slice", "small", precision), 1, 1)
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        own, saved = addresses(state), values(state)
        if precision == "float32":  # the sources of bfloat16 are copies
            assert {
                name: source.look_up().ctypes.data
                for name, source in method.sources(state).items()
                if name in own
            } == own
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state, 1)
        assert values(state) != saved
        own = addresses(state)
        method.load(state, tmp_path / "checkpoint")
        assert addresses(state) == own
        assert values(state) == saved
        train(framework, state, 1)
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
    method = new_method("deepfreeze", framework)
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
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        saved = values(state)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state, 1)
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
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        saved, then = values(state), values(other)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state, 1)
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
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        saved = values(state)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state, 1)
        assert values(state) != saved
        method.load(state, tmp_path / "checkpoint")
    assert values(state) == saved


def test_a_variable_without_elements_is_left_as_it_is() -> None:
    variables = {"none": tf.Variable(tf.zeros((0, 4))), "one": tf.Variable(tf.ones(3))}
    recycled = recycling.Recycling(variables)
    assert recycled.take(
        lambda: {name: variable.value() for name, variable in variables.items()}
    ).keys() == {"one"}


def test_a_load_that_breaks_off_leaves_no_thread_reading(
    framework: TensorFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_small_blocks(monkeypatch)
    # as if the variables were a GPU's
    monkeypatch.setattr(recycling, "_is_here", lambda variable: False)
    state = trained(framework, workloads.load("resnet50", "small"), 1, 1)
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        load_breaks_off(method, state, tmp_path / "checkpoint", deepfreeze, "_tensor", monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_empty_tensor_comes_back(dtype: str) -> None:
    assert deepfreeze._tensor(
        np.empty(0, np.uint8), Spec("optimizer/none", dtype, (0, 4))
    ).shape == (0, 4)
