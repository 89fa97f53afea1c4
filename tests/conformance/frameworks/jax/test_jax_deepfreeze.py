"""DeepFreeze with JAX's arrays, whose memory a load takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from deepfreeze_loads import load_breaks_off, read_in_small_blocks
from device_copies import check_there_and_back
from subject import new_method, opened, train, trained

import workloads
from adapters.deepfreeze.driver_stream import AtAddress, DriverStream
from adapters.deepfreeze.tensor import Bytes, Device
from adapters.jax import deepfreeze, recycling
from adapters.jax.framework import Jax
from adapters.jax.state import State
from adapters.shared import cuda_driver

ROOT = Path(__file__).resolve().parents[4]


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
    # Nothing is read into the memory of arrays that several devices share.
    monkeypatch.setattr(recycling, "_is_whole", lambda array: False)
    state = trained(framework, workloads.load("resnet50", "small"), 1, 1)
    method = new_method("deepfreeze", framework)
    with opened(method, state):
        load_breaks_off(method, state, tmp_path / "checkpoint", jax, "device_put", monkeypatch)


# A GPU


class OnDriverStream(deepfreeze.DeepFreeze):
    """DeepFreeze that copies through the driver, as it does on a GPU."""

    def new_device(self) -> Device:
        return DriverStream(0)


@pytest.mark.parametrize("preset", ["candle-mlp", "llm-slice"])
def test_arrays_are_saved_and_loaded_through_the_driver(
    framework: Jax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    """The arrays are on the CPU, and so is the memory of this driver's GPU."""
    library = tmp_path / "libcuda.so.1"
    source = ROOT / "tests" / "cuda_driver.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    monkeypatch.setattr(cuda_driver, "LIBRARY", str(library))
    monkeypatch.setattr(deepfreeze, "_is_on_gpu", lambda array: array.size > 0)
    precision = "bf16-mixed" if preset == "llm-slice" else "float32"
    state = trained(framework, workloads.load(preset, "small", precision), 1, 2)
    method = OnDriverStream(framework.place, framework, {})
    with opened(method, state):
        saved = values(state)
        for number in range(2):
            save = method.save(state, tmp_path / str(number))
            save.staged()
            train(framework, state, 1)
            save.finished()
        later = values(state)
        method.load(state, tmp_path / "1")
        assert values(state) != later
        method.load(state, tmp_path / "0")
        assert values(state) == saved
        train(framework, state, 2)
    assert values(state) == later


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX finds no GPU")
def test_the_stream_copies_to_a_gpu_and_from_it() -> None:
    def to_gpu(data: Bytes) -> AtAddress:
        array = jax.block_until_ready(jax.device_put(data, jax.devices("gpu")[0]))
        address = array.unsafe_buffer_pointer() if data.size else 0
        return AtAddress(address, array.nbytes, array)

    def to_host(tensor: AtAddress) -> Bytes:
        # Another array object does not have the copy that JAX keeps of an array on the host.
        return np.asarray(jax.numpy.copy(tensor.owner))

    check_there_and_back(DriverStream(0), to_gpu, to_host)
