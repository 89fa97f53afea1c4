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
        before, saved = addresses(state), values(state)
        # The sources of bfloat16 are copies.
        if precision == "float32":
            sources = method.sources(state)
            saved_from = {name: sources[name].look_up().ctypes.data for name in before}
            assert saved_from == before
            del sources
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state, 1)
        assert values(state) != saved
        before = addresses(state)
        method.load(state, tmp_path / "checkpoint")
        assert addresses(state) == before
        assert values(state) == saved
        train(framework, state, 1)
        # Weights of bfloat16 get new memory in any step. The slots stay where they are, because
        # nothing holds their values any more.
        after = addresses(state)
        slots = [name for name in before if name.startswith("optimizer/")]
        assert [after[name] for name in slots] == [before[name] for name in slots]


def test_large_values_without_targets_lie_in_one_piece(
    framework: TensorFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables on a GPU have no memory into which a load could read."""
    monkeypatch.setattr(recycling, "_is_here", lambda variable: False)
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 1)
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        before, saved = addresses(state), values(state)
        method.save(state, tmp_path / "checkpoint").finished()
        method.load(state, tmp_path / "checkpoint")
    loaded = sorted(addresses(state).values())
    assert not set(loaded) & set(before.values())
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
        held_values = {name: var.value() for name, var in state.plain_variables().items()}
        before = values(state)
        assert before != saved
        method.load(state, tmp_path / "checkpoint")
    held_bytes = {name: value.numpy().tobytes() for name, value in held_values.items()}
    assert held_bytes == before
    assert values(state) == saved


def test_a_load_into_another_state_than_the_opened_one_changes_no_value_of_either(
    framework: TensorFlow, tmp_path: Path
) -> None:
    workload = workloads.load("candle-mlp", "small")
    state, other = trained(framework, workload, 1, 1), trained(framework, workload, 2, 2)
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        saved, values_of_other = values(state), values(other)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state, 1)
        values_of_state = values(state)
        held_values = {name: var.value() for name, var in other.plain_variables().items()}
        method.load(other, tmp_path / "checkpoint")
    assert values(other) == saved
    assert values(state) == values_of_state
    held_bytes = {name: value.numpy().tobytes() for name, value in held_values.items()}
    assert held_bytes == values_of_other


def test_a_variable_that_hands_out_copies_is_loaded(framework: TensorFlow, tmp_path: Path) -> None:
    """A variable from which something was gathered hands out copies ever after."""
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
    # Nothing is read into the memory of variables on a GPU.
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
