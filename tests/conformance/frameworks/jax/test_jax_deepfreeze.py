"""DeepFreeze with JAX's arrays, whose memory a load takes."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from deepfreeze_loads import load_breaks_off, read_in_small_blocks
from subject import new_method, opened, train, trained

import workloads
from adapters.jax import recycling
from adapters.jax.framework import Jax
from adapters.jax.state import State


def values(state: State) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in state.tensors().items()}


def test_a_load_changes_nothing_that_somebody_else_has(framework: Jax, tmp_path: Path) -> None:
    """Arrays that a load takes are deleted. What a buffer of one shows stays as it is."""
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 2)
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        saved = values(state)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state, 1)
        tensors = state.tensors()
        weights = [array for name, array in tensors.items() if name.startswith("weights/")]
        slots = [array for name, array in tensors.items() if name.startswith("optimizer/")]
        del tensors
        views = [memoryview(array) for array in slots]
        before = [view.tobytes() for view in views]
        method.load(state, tmp_path / "checkpoint")
    assert all(array.is_deleted() for array in weights)
    assert [view.tobytes() for view in views] == before
    assert values(state) == saved
    train(framework, state, 1)


def test_a_step_behind_a_load_is_not_compiled_anew(framework: Jax, tmp_path: Path) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    functions = [state.training.gradients, state.training.update]
    for function in functions:
        function.clear_cache()
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        train(framework, state, 1)
        method.save(state, tmp_path / "checkpoint").finished()
        method.load(state, tmp_path / "checkpoint")
        train(framework, state, 1)
    assert [function._cache_size() for function in functions] == [1, 1]


def test_an_array_without_elements_is_left_where_it_is() -> None:
    arrays = {"none": jax.numpy.zeros((0, 4)), "one": jax.numpy.ones(3)}
    assert recycling.Recycling(arrays).take(arrays).keys() == {"one"}


def test_a_load_that_breaks_off_leaves_no_thread_reading(
    framework: Jax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_small_blocks(monkeypatch)
    # Nothing is read into the memory of arrays on a GPU.
    monkeypatch.setattr(recycling, "_is_here", lambda array: False)
    state = trained(framework, workloads.load("resnet50", "small"), 1, 1)
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        load_breaks_off(method, state, tmp_path / "checkpoint", jax, "device_put", monkeypatch)
