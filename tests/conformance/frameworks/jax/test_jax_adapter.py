"""The parts of the JAX adapter that no other framework has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorstore as ts
from flax.training.train_state import TrainState
from subject import SUBJECT, new_method, opened, train

import workloads
from adapters.base import DirectIo, Place
from adapters.jax import ocdbt, own_model
from adapters.jax.framework import Jax
from adapters.jax.layout import same_memory
from adapters.jax.modules import _max_pool, max_pool_by_windows
from adapters.shared.formats import zarr
from workloads import Role


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 0)]
)
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 9, 7)])
def test_the_max_pool_of_a_gpu_is_that_of_a_cpu(
    shape: tuple[int, ...], kernel: int, stride: int, padding: int
) -> None:
    # Most windows hold their largest value twice.
    x = jnp.asarray(np.random.default_rng(1).integers(-2, 3, shape), jnp.float32)
    pooled, pull_back = jax.vjp(lambda x: _max_pool(x, kernel, stride, padding), x)
    gradient = jnp.asarray(np.random.default_rng(2).normal(size=pooled.shape), jnp.float32)
    by_windows, pull_back_by_windows = jax.vjp(
        lambda x: max_pool_by_windows(x, kernel, stride, padding), x
    )
    assert np.array_equal(by_windows, pooled)
    np.testing.assert_allclose(
        pull_back_by_windows(gradient)[0], pull_back(gradient)[0], rtol=1e-6, atol=1e-6
    )


def test_two_arrays_have_the_same_memory() -> None:
    array = jnp.arange(12.0).addressable_data(0)
    other = same_memory(array)
    assert other is not array
    assert other.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert np.array_equal(other, array)


# Takes a step, and prints how many programs XLA had to compile.
TAKES_A_STEP = """
import sys
from pathlib import Path
import jax
import workloads
from adapters.base import DirectIo, Place
from adapters.jax.framework import Jax

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
temporary, programs = map(Path, sys.argv[1:])
framework = Jax()
framework.start(Place(0, 1, "cpu", temporary, DirectIo(False, 0, 0), programs=programs))
state = framework.build(workloads.load("candle-mlp", "small"), 1)
framework.gradients(state)
framework.update(state)
print(events.count("/jax/compilation_cache/cache_misses"))
"""


def test_a_later_process_finds_the_programs_of_the_first(tmp_path: Path) -> None:
    """Each has a folder for temporary files of its own, as each job of a run has."""
    root = str(Path(workloads.__file__).parents[1])
    # By default, programs that compile in less than a second are not kept.
    kept = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONPATH": root}
    variables = {key: os.environ[key] for key in os.environ if not key.startswith("JAX_")} | kept
    compiled = []
    for number in range(2):
        temporary = tmp_path / str(number)
        command = [sys.executable, "-c", TAKES_A_STEP, str(temporary), str(tmp_path / "programs")]
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        compiled.append(int(ended.stdout))
    assert compiled[0] > 0 == compiled[1]


@pytest.mark.parametrize("case", SUBJECT.cases)
def test_a_step_is_compiled_once(framework: Jax, case: str) -> None:
    state = framework.build(SUBJECT.workload(case), seed=5)
    functions = [state.training.gradients, state.training.update]
    for function in functions:
        function.clear_cache()
    train(framework, state, 3)
    assert [function._cache_size() for function in functions] == [1, 1]


def test_a_tree_of_many_nodes_is_read_to_the_end(tmp_path: Path) -> None:
    small = {"max_decoded_node_bytes": 300, "max_inline_value_bytes": 10}
    store = ts.KvStore.open(
        {"driver": "ocdbt", "config": small, "base": f"file://{tmp_path}/"}
    ).result()
    written = {f"optimizer.{number % 3}.weight{number}/0": number * b"." for number in range(40)}
    with ts.Transaction() as transaction:
        for key, value in written.items():
            store.with_transaction(transaction)[key] = value
    values = list(ocdbt.values(tmp_path, zarr.is_description))
    assert len(values) == len(written)
    assert {value.key: value.read() for value in values} == written
    assert all(
        value.stored_bytes <= value.size_bytes == len(written[value.key]) for value in values
    )
    assert all((tmp_path / value.file).is_file() for value in values)


@pytest.mark.parametrize("name", [name for name in SUBJECT.methods if name.startswith("orbax")])
def test_orbax_leaves_nothing_beside_the_checkpoint(
    framework: Jax, name: str, tmp_path: Path
) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = new_method(name, framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_several_ranks_need_a_strategy(tmp_path: Path) -> None:
    place = Place(
        0, 2, "cpu", tmp_path, DirectIo(False, 0, 0), ("127.0.0.1", 1), strategy="pipelined"
    )
    with pytest.raises(ValueError, match="replicated, sharded, not 'pipelined'"):
        Jax().start(place)


@pytest.mark.parametrize("name", ["state", "optimizer"])
def test_a_training_state_has_the_same_parts_under_any_name(
    lasting_framework: Jax, name: str
) -> None:
    # The slots of the optimizer have the name "params" in their paths, too.
    variables = {"params": {"w": jnp.ones(3)}}
    trained = TrainState.create(apply_fn=None, params=variables, tx=optax.adam(1e-2))
    made = {name: trained}, lambda tree, number: tree
    state = own_model.new_state(made, lasting_framework.strategy)
    assert {leaf.name: leaf.role for leaf in lasting_framework.leaves(state)} == {
        f"weights/{name}.params.params.w": Role.WEIGHT,
        f"optimizer/{name}.step": Role.OPTIMIZER,
        f"optimizer/{name}.opt_state.0.count": Role.OPTIMIZER,
        f"optimizer/{name}.opt_state.0.mu.params.w": Role.OPTIMIZER,
        f"optimizer/{name}.opt_state.0.nu.params.w": Role.OPTIMIZER,
        "position/step": Role.POSITION,
    }


def test_momentum_under_the_names_of_the_weights_is_the_optimizers(lasting_framework: Jax) -> None:
    variables = {"params": {"w": jnp.ones(3)}}
    tree = {"variables": variables, "optimizer": variables}
    state = own_model.new_state((tree, lambda tree, number: tree), lasting_framework.strategy)
    assert {leaf.name for leaf in lasting_framework.leaves(state)} == {
        "weights/variables.params.w",
        "optimizer/optimizer.params.w",
        "position/step",
    }
