"""DeepFreeze in JAX: it keeps nobody from the arrays' memory. Runs in JAX's environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

import numpy as np  # noqa: E402
from deepfreeze_loads import load_breaks_off, load_finds_damage, read_in_small_blocks  # noqa: E402
from deepfreeze_shards import indexed, save_shards  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.flax import load_file  # noqa: E402
from test_jax import make, opened, trained  # noqa: E402

import workloads  # noqa: E402
from adapters.base import DirectIo, Place  # noqa: E402
from adapters.deepfreeze.arrivals import Arrival  # noqa: E402
from adapters.jax import recycling  # noqa: E402
from adapters.jax.framework import Jax  # noqa: E402
from adapters.jax.state import State  # noqa: E402


@pytest.fixture
def framework(tmp_path: Path) -> Iterator[Jax]:
    framework = Jax()
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
    trained = ("weights/", "optimizer/momentum/")
    return {
        name: array.unsafe_buffer_pointer()
        for name, array in state.tensors().items()
        if name.startswith(trained)
    }


def values(state: State) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in state.tensors().items()}


def train(framework: Jax, state: State) -> None:
    framework.gradients(state)
    framework.update(state)


def test_the_step_behind_a_save_still_works_in_place(framework: Jax, tmp_path: Path) -> None:
    """JAX copies donated arrays that somebody still looks at: staged() must have let go of them."""
    state = trained(framework, workloads.load("resnet50", "small"), 1, 2)
    before = addresses(state)
    method = make("deepfreeze", framework)
    with opened(method, state):
        pending = method.save(state, tmp_path / "checkpoint")
        framework.gradients(state)
        pending.staged()
        framework.update(state)
        assert addresses(state) == before
        pending.finished()


def test_a_load_takes_the_memory_that_is_there(framework: Jax, tmp_path: Path) -> None:
    state = trained(framework, workloads.load("llm-slice", "small", "bf16-mixed"), 1, 2)
    method = make("deepfreeze", framework)
    with opened(method, state):
        saved = values(state)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state)
        assert values(state) != saved
        before = addresses(state)
        method.load(state, tmp_path / "checkpoint")
    assert addresses(state) == before
    assert values(state) == saved


def test_a_load_changes_nothing_that_somebody_else_has(framework: Jax, tmp_path: Path) -> None:
    """Of the arrays themselves they are told; what numpy or a buffer shows stays as it is."""
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 2)
    method = make("deepfreeze", framework)
    with opened(method, state):
        saved = values(state)
        method.save(state, tmp_path / "checkpoint").finished()
        train(framework, state)
        kept, shown = [
            [array for name, array in state.tensors().items() if name.startswith(part)]
            for part in ("weights/", "opt")
        ]
        views = [memoryview(array) for array in shown]
        then = [view.tobytes() for view in views]
        method.load(state, tmp_path / "checkpoint")
    assert all(array.is_deleted() for array in kept)
    assert [view.tobytes() for view in views] == then
    assert values(state) == saved
    train(framework, state)


def test_a_step_behind_a_load_is_not_compiled_anew(framework: Jax, tmp_path: Path) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    functions = [state.training.gradients, state.training.update]
    for function in functions:
        function.clear_cache()
    method = make("deepfreeze", framework)
    with opened(method, state):
        train(framework, state)
        method.save(state, tmp_path / "checkpoint").finished()
        method.load(state, tmp_path / "checkpoint")
        train(framework, state)
    assert [function._cache_size() for function in functions] == [1, 1]


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_load_during_a_save_takes_nothing_from_it(
    framework: Jax, tmp_path: Path, is_staged: bool
) -> None:
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 2)
    method = make("deepfreeze", framework)
    with opened(method, state):
        first = values(state)
        method.save(state, tmp_path / "first").finished()
        train(framework, state)
        second = values(state)
        pending = method.save(state, tmp_path / "second")
        if is_staged:
            pending.staged()
        method.load(state, tmp_path / "first")
        assert values(state) == first
        pending.finished()
        method.load(state, tmp_path / "second")
        assert values(state) == second


def test_a_load_into_memory_that_breaks_off_leaves_no_thread_reading(
    framework: Jax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_small_blocks(monkeypatch)
    state = trained(framework, workloads.load("resnet50", "small"), 1, 1)
    method = make("deepfreeze", framework)
    with opened(method, state):
        load_breaks_off(method, state, tmp_path / "checkpoint", Arrival, "check", monkeypatch)
    train(framework, state)


def test_an_array_without_elements_is_left_where_it_is() -> None:
    arrays = {"none": jax.numpy.zeros((0, 4)), "one": jax.numpy.ones(3)}
    assert recycling.Recycling(arrays).take(arrays).keys() == {"one"}


def test_a_load_that_finds_damage_leaves_a_state_that_trains(
    framework: Jax, tmp_path: Path
) -> None:
    state = trained(framework, workloads.load("candle-mlp", "small"), 1, 2)
    method = make("deepfreeze", framework)
    with opened(method, state):
        load_finds_damage(method, state, tmp_path / "checkpoint")
        (tmp_path / "checkpoint" / "model.safetensors").unlink()
        with pytest.raises(FileNotFoundError):
            method.load(state, tmp_path / "checkpoint")
    train(framework, state)


def test_the_library_finds_every_array(framework: Jax, tmp_path: Path) -> None:
    state = trained(framework, workloads.load("llm-slice", "small", "bf16-mixed"), 1, 2)
    method = make("deepfreeze", framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
    found, expected = load_file(tmp_path / "checkpoint" / "model.safetensors"), state.tensors()
    assert found.keys() == expected.keys()
    assert all(
        (found[name] == array).all() and found[name].dtype == array.dtype
        for name, array in expected.items()
    )


def test_the_library_opens_the_files_of_several_ranks_through_their_index(tmp_path: Path) -> None:
    expected = save_shards(tmp_path / "checkpoint")
    found = {}
    for name, file in indexed(tmp_path / "checkpoint"):
        with safe_open(file, "flax") as opened_file:
            found[name] = np.asarray(opened_file.get_tensor(name)).tobytes()
    assert found.keys() == expected.keys()
    different = [name for name, data in found.items() if data != expected[name]]
    assert different == []


def test_a_load_that_breaks_off_leaves_no_thread_reading(
    framework: Jax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_small_blocks(monkeypatch)
    monkeypatch.setattr(recycling, "_is_here", lambda array: False)  # as if the arrays were a GPU's
    state = trained(framework, workloads.load("resnet50", "small"), 1, 1)
    method = make("deepfreeze", framework)
    with opened(method, state):
        load_breaks_off(method, state, tmp_path / "checkpoint", jax, "device_put", monkeypatch)
