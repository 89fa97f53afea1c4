"""The JAX adapter keeps the contract. Runs in JAX's environment, and is skipped in any other."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from declarations import declaration, is_readable_by_any_world, must_be_named

pytest.importorskip("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import tensorstore as ts  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

import workloads  # noqa: E402
from adapters.base import DirectIo, Entry, Leaf, Method, Place  # noqa: E402
from adapters.jax import ocdbt  # noqa: E402
from adapters.jax.framework import Jax  # noqa: E402
from adapters.jax.layout import same_memory  # noqa: E402
from adapters.jax.modules import _max_pool, max_pool_by_windows  # noqa: E402
from adapters.jax.state import State  # noqa: E402
from adapters.shared.formats import zarr  # noqa: E402
from workloads import Role, Workload  # noqa: E402

ROOT = Path(__file__).parents[2]
DECLARED = declaration("jax")
METHODS: dict[str, dict[str, Any]] = DECLARED["methods"]
STRATEGIES: dict[str, dict[str, Any]] = DECLARED["strategies"]
RESHARDING = [name for name, method in METHODS.items() if is_readable_by_any_world(method)]
# what changes its ranks
RESHARDED = {"replicated": ("resnet50", "small"), "sharded": ("llm-slice", "small", "bf16-mixed")}
SPLIT = ("candle-mlp", "llm-slice")  # what four ranks train like one
# a sharded batch has one mask, whatever the number of ranks
SPLIT_DROPOUT = {"replicated": 0.0, "sharded": 0.1}
# after which they are compared, and how much the moments may differ by then
SPLIT_STEPS = {1: 1e-5, 10: 1e-4}
# Adam's first moment, a tenth of the first gradient, is held against its largest element. Its steps
# are of the size of the learning rate, whatever the gradients are: where these are next to nothing,
# their rounding is a good part of a step.
STEP_TOLERANCE = 0.1 * 1e-3
SMALL = [
    (name, precision) for name in workloads.names() for precision in workloads.precisions(name)
]
IN_NODE_BYTES = 1024  # a value that is no longer lies in a node of OCDBT's tree
Bytes = NDArray[np.uint8]
# Orbax widens the position to 64 bits, msgpack packs it
EXACT = (Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER, Role.RNG)


@pytest.fixture(params=SMALL, ids="-".join)
def workload(request: pytest.FixtureRequest) -> Workload:
    name, precision = request.param
    return workloads.load(name, "small", precision)


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


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest, framework: Jax) -> Method[State]:
    return make(request.param, framework)


def make(name: str, framework: Jax) -> Method[State]:
    module, _, attribute = METHODS[name]["class"].partition(":")
    return getattr(importlib.import_module(module), attribute)(
        framework.place, framework, METHODS[name].get("options", {})
    )


@contextmanager
def opened(method: Method[State], state: State) -> Iterator[Method[State]]:
    method.open(state)
    try:
        yield method
    finally:
        method.close()


def train(framework: Jax, state: State, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        framework.gradients(state)
        losses.append(framework.loss(state))
        framework.update(state)
    return losses


def trained(framework: Jax, workload: Workload, seed: int, steps: int) -> State:
    state = framework.build(workload, seed)
    train(framework, state, steps)
    return state


def digests(framework: Jax, state: State) -> dict[str, str]:
    return {leaf.name: digest(leaf.data) for leaf in framework.leaves(state)}


def digest(data: memoryview | bytes | Bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 0)]
)
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 9, 7)])
def test_the_max_pool_of_a_gpu_is_that_of_a_cpu(
    shape: tuple[int, ...], kernel: int, stride: int, padding: int
) -> None:
    # most windows hold their largest value twice
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


def test_the_same_memory_is_another_arrays_too() -> None:
    own = jnp.arange(12.0).addressable_data(0)
    other = same_memory(own)
    assert other is not own
    assert other.unsafe_buffer_pointer() == own.unsafe_buffer_pointer()
    assert np.array_equal(other, own)


def methods_for(strategy: str) -> list[str]:
    sharded = STRATEGIES[strategy].get("sharded", False)
    return [
        name
        for name, method in METHODS.items()
        if (method.get("takes_shards") or not sharded) and not must_be_named(method)
    ]


def resharding_for(strategy: str) -> list[str]:
    return [name for name in methods_for(strategy) if name in RESHARDING]


def leaves_own_alone(name: str) -> bool:
    """Whether a load with another number of ranks leaves what is a rank's own as it is; others take what another rank had."""
    return name.startswith("orbax")


def spec(leaf: Leaf) -> tuple[str, Role, str, tuple[int, ...]]:
    return leaf.name, leaf.role, leaf.dtype, leaf.shape


def test_the_leaves_are_those_of_the_workload(framework: Jax, workload: Workload) -> None:
    leaves = [spec(leaf) for leaf in framework.leaves(framework.build(workload, 1))]
    expected = {(leaf.name, leaf.role, leaf.dtype, leaf.shape) for leaf in workload.leaf_specs()}
    added = {name for name, *_ in leaves} - {name for name, *_ in expected}
    assert expected <= set(leaves)
    assert len({name for name, *_ in leaves}) == len(leaves)
    assert added <= {"rng/key", "position/step", "optimizer/count"}


def test_the_leaf_bytes_are_those_of_their_type_and_shape(
    framework: Jax, workload: Workload
) -> None:
    sizes = {"bfloat16": 2, "float32": 4, "int32": 4, "uint32": 4}
    for leaf in framework.leaves(framework.build(workload, 1)):
        assert leaf.data.format == "B"
        assert leaf.data.nbytes == sizes[leaf.dtype] * math.prod(leaf.shape)


def test_a_new_state_has_the_workloads_first_values(framework: Jax, workload: Workload) -> None:
    leaves = {
        leaf.name: bytes(leaf.data) for leaf in framework.leaves(framework.build(workload, 3))
    }
    weights = "optimizer/master" if workload.master_weights else "weights"
    for prefix, variables in ((weights, workload.parameters), ("buffers", workload.buffers)):
        for variable in variables:
            assert (
                leaves[f"{prefix}/{variable.name}"] == workload.initial(variable.name, 3).tobytes()
            )


def test_the_leaves_do_not_depend_on_the_step(framework: Jax, workload: Workload) -> None:
    state = framework.build(workload, 1)
    before = [spec(leaf) for leaf in framework.leaves(state)]
    train(framework, state, 1)
    assert [spec(leaf) for leaf in framework.leaves(state)] == before


def test_every_leaf_differs_between_seeds_and_steps(framework: Jax, workload: Workload) -> None:
    first = digests(framework, trained(framework, workload, 1, 2))
    second = digests(framework, trained(framework, workload, 2, 3))
    assert [name for name in first if first[name] == second[name]] == []


def test_training_is_repeatable(framework: Jax, workload: Workload) -> None:
    once, again = (digests(framework, trained(framework, workload, 1, 3)) for _ in range(2))
    assert once == again


def test_a_step_is_compiled_once(framework: Jax, workload: Workload) -> None:
    state = framework.build(workload, seed=5)
    functions = [state.training.gradients, state.training.update]
    for function in functions:
        function.clear_cache()
    train(framework, state, 3)
    assert [function._cache_size() for function in functions] == [1, 1]


def test_the_loss_falls(framework: Jax, workload: Workload) -> None:
    losses = train(framework, framework.build(workload, 1), 100)
    assert sum(losses[-10:]) < 0.85 * sum(losses[:10])


def test_a_load_restores_every_leaf_and_training_goes_on_the_same(
    framework: Jax, workload: Workload, method: Method[State], tmp_path: Path
) -> None:
    state = trained(framework, workload, 1, 3)
    saved = digests(framework, state)
    with opened(method, state):
        pending = method.save(state, tmp_path / "checkpoint")
        pending.staged()
        pending.finished()
        train(framework, state, 2)
        target = trained(framework, workload, 2, 1)
        method.load(target, tmp_path / "checkpoint")
    assert digests(framework, target) == saved
    train(framework, target, 2)
    assert digests(framework, target) == digests(framework, state)


def test_a_state_that_has_taken_no_step_can_be_loaded(
    framework: Jax, workload: Workload, method: Method[State], tmp_path: Path
) -> None:
    state = trained(framework, workload, 1, 2)
    target = framework.build(workload, 2)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
        method.load(target, tmp_path / "checkpoint")
    assert digests(framework, target) == digests(framework, state)


@pytest.mark.parametrize("steps", [0, 2])  # slots of zeros, and trained ones
def test_the_entries_come_to_the_state(
    framework: Jax, workload: Workload, method: Method[State], steps: int, tmp_path: Path
) -> None:
    state = trained(framework, workload, 1, steps)
    expected = role_bytes(framework, state)
    entries = saved_entries(method, state, tmp_path / "checkpoint")
    found: Counter[Role | None] = Counter()
    for entry in entries:
        found[entry.role] += entry.raw_bytes
    assert {role: found[role] for role in EXACT} == {role: expected[role] for role in EXACT}
    assert 1 <= found[Role.POSITION] <= 8
    assert len({entry.name for entry in entries}) == len(entries)


@pytest.mark.parametrize("name", METHODS)
def test_the_entries_take_what_the_files_have(
    framework: Jax, workload: Workload, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    entries = saved_entries(make(name, framework), trained(framework, workload, 1, 2), path)
    check_files(path, entries)
    slots = [entry for entry in entries if entry.role is Role.OPTIMIZER]
    if METHODS[name].get("compressed"):
        assert sum(entry.stored_bytes for entry in slots) < sum(entry.raw_bytes for entry in slots)
    else:
        # a node is always compressed
        in_node_bytes = IN_NODE_BYTES if METHODS[name]["format"] == "ocdbt" else 0
        assert all(
            entry.stored_bytes == entry.raw_bytes
            for entry in entries
            if entry.raw_bytes > in_node_bytes
        )
        assert all(entry.stored_bytes <= entry.raw_bytes for entry in entries)


def saved_entries(method: Method[State], state: State, path: Path) -> list[Entry]:
    with opened(method, state):
        method.save(state, path).finished()
        return list(method.entries(path))


def role_bytes(
    framework: Jax, state: State, size: Callable[[Leaf], int] = lambda leaf: leaf.data.nbytes
) -> Counter[Role]:
    found: Counter[Role] = Counter()
    for leaf in framework.leaves(state):
        found[leaf.role] += size(leaf)
    return found


def check_files(path: Path, entries: list[Entry]) -> None:
    """No file has less than its entries say, and there are entries for most of what is in all of them."""
    stored: Counter[str] = Counter()
    for entry in entries:
        assert entry.stored_bytes >= 0
        stored[entry.file] += entry.stored_bytes
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    sizes = {
        file.name if file == path else str(file.relative_to(path)): file.stat().st_size
        for file in files
    }
    assert stored.keys() <= sizes.keys()
    assert [name for name in stored if stored[name] > sizes[name]] == []
    assert stored.total() > 0.5 * sum(sizes.values())


def test_a_tree_of_many_nodes_is_read_to_the_end(tmp_path: Path) -> None:
    small = {"max_decoded_node_bytes": 300, "max_inline_value_bytes": 10}
    store = ts.KvStore.open(
        {"driver": "ocdbt", "config": small, "base": f"file://{tmp_path}/"}
    ).result()
    written = {f"optimizer.{number % 3}.weight{number}/0": number * b"." for number in range(40)}
    with ts.Transaction() as transaction:
        for key, value in written.items():
            store.with_transaction(transaction)[key] = value
    found = list(ocdbt.values(tmp_path, zarr.is_description))
    assert len(found) == len(written)
    assert {value.key: value.read() for value in found} == written
    assert all(value.stored_bytes <= value.size_bytes == len(written[value.key]) for value in found)
    assert all((tmp_path / value.file).is_file() for value in found)


def test_training_behind_a_save_does_not_change_it(
    framework: Jax, workload: Workload, method: Method[State], tmp_path: Path
) -> None:
    state = trained(framework, workload, 1, 2)
    target = trained(framework, workload, 2, 1)
    with opened(method, state):
        for number in range(3):  # later saves meet what the first has left to be reused
            saved = digests(framework, state)
            pending = method.save(state, tmp_path / str(number))
            framework.gradients(state)
            pending.staged()
            framework.update(state)
            pending.finished()
            method.load(target, tmp_path / str(number))
            assert digests(framework, target) == saved


@pytest.mark.parametrize("name", METHODS)
def test_a_failed_save_is_raised(framework: Jax, name: str, tmp_path: Path) -> None:
    # A file that may not grow, not a missing directory: after that Orbax's threads wait 300 s, and
    # the interpreter for them.
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = make(name, framework)
    with (
        opened(method, state),
        files_of_at_most(10_000),
        pytest.raises(Exception, match=r"(?i)too large|writ"),
    ):
        method.save(state, tmp_path / "checkpoint").finished()


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    # an error instead of the signal that ends the process
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("orbax")])
def test_orbax_leaves_nothing_beside_the_checkpoint(
    framework: Jax, name: str, tmp_path: Path
) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = make(name, framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_cuda_device_that_is_not_there_is_unsupported(framework: Jax, workload: Workload) -> None:
    assert "finds no CUDA device" in (framework.unsupported(workload, "cuda") or "")
    assert framework.unsupported(workload, "cpu") is None


def test_assigned_leaves_are_the_states_own_from_then_on(
    framework: Jax, workload: Workload
) -> None:
    first, second = (trained(framework, workload, seed, 2) for seed in (1, 2))
    programs = first.training.gradients._cache_size(), first.training.update._cache_size()
    leaves = {leaf.name: bytearray(leaf.data) for leaf in framework.leaves(first)}
    some = dict(list(leaves.items())[::2])
    expected = digests(framework, second) | {name: digest(data) for name, data in some.items()}
    framework.assign(second, {name: memoryview(data) for name, data in some.items()})
    assert digests(framework, second) == expected
    framework.assign(second, {name: memoryview(data) for name, data in leaves.items()})
    for data in leaves.values():
        data[:] = bytes(len(data))  # the caller's memory is the caller's again
    train(framework, first, 2)
    train(framework, second, 2)
    assert digests(framework, second) == digests(framework, first)
    assert (first.training.gradients._cache_size(), first.training.update._cache_size()) == programs


def test_an_unknown_leaf_cannot_be_assigned(framework: Jax) -> None:
    with pytest.raises(KeyError, match="weights/none"):
        framework.assign(
            framework.build(workloads.load("candle-mlp", "small"), 1),
            {"weights/none": memoryview(b"")},
        )


def test_several_ranks_need_a_strategy(tmp_path: Path) -> None:
    place = Place(
        0, 2, "cpu", tmp_path, DirectIo(False, 0, 0), ("127.0.0.1", 1), strategy="pipelined"
    )
    with pytest.raises(ValueError, match="replicated, sharded, not 'pipelined'"):
        Jax().start(place)


needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun", path=Path(sys.executable).parent) is None,
    reason="mpirun is not installed",
)


@dataclass(frozen=True)
class Run:
    """What ranks of one strategy have said, and the folder that they have written to."""

    strategy: str
    folder: Path
    verdicts: list[str]


def run_ranks(world: int, strategy: str, folder: Path, saved: Path | None = None) -> Run:
    mpirun = str(Path(sys.executable).parent / "mpirun")
    script = str(Path(__file__).parent / "jax_ranks.py")
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    arguments = [strategy, str(folder), *([str(saved)] if saved else [])]
    command = [mpirun, "--oversubscribe", "-n", str(world), sys.executable, script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return Run(
        strategy,
        folder,
        [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")],
    )


@pytest.fixture(scope="module", params=STRATEGIES)
def two_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_ranks(2, request.param, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four_ranks(two_ranks: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_ranks(4, two_ranks.strategy, tmp_path_factory.mktemp("four"), two_ranks.folder)


@pytest.mark.slow
@needs_mpirun
def test_two_ranks_restore_what_a_method_covers(two_ranks: Run) -> None:
    checks = [*methods_for(two_ranks.strategy), "assigned", "replicas of resnet50"]
    assert sorted(two_ranks.verdicts) == sorted(2 * [f"{check}: equal" for check in checks])


@pytest.mark.slow
@needs_mpirun
def test_four_ranks_load_what_two_have_saved_and_train_repeatably(four_ranks: Run) -> None:
    again = resharding_for(four_ranks.strategy)
    checks = [
        *again,
        "repeated with dropout",
        *(f"{check} {name}" for name in SPLIT for check in ("repeated", "replicas of")),
    ]
    assert sorted(four_ranks.verdicts) == sorted(4 * [f"{check}: equal" for check in checks])


@pytest.mark.slow
@needs_mpirun
@pytest.mark.parametrize("name", SPLIT)
def test_four_ranks_train_like_one(four_ranks: Run, framework: Jax, name: str) -> None:
    state = framework.build(
        workloads.load(name, "small", dropout=SPLIT_DROPOUT[four_ranks.strategy]), 1
    )
    for steps, moment_tolerance in SPLIT_STEPS.items():
        train(framework, state, steps - state.step)
        with np.load(four_ranks.folder / f"{name}-{steps}.npz") as found:
            for leaf, array in state.tensors().items():
                if leaf.startswith(("weights/", "optimizer/exp_avg/")):
                    alone, split = (
                        np.asarray(array),
                        found[leaf].view(np.float32).reshape(array.shape),
                    )
                    tolerance = (
                        STEP_TOLERANCE
                        if leaf.startswith("weights/")
                        else moment_tolerance * np.abs(alone).max()
                    )
                    assert np.abs(split - alone).max() <= tolerance, f"{leaf} after {steps} steps"


@pytest.mark.slow
@needs_mpirun
@pytest.mark.parametrize("name", RESHARDING)
def test_one_rank_loads_what_two_have_saved(two_ranks: Run, framework: Jax, name: str) -> None:
    if name not in resharding_for(two_ranks.strategy):
        pytest.skip(f"{name} takes no sharded state")
    target = framework.build(workloads.load(*RESHARDED[two_ranks.strategy]), 2)
    saved = json.loads((two_ranks.folder / "saved.json").read_text())
    expected = digests(framework, target) | saved  # what was a rank's own stays
    with opened(make(name, framework), target) as method:
        method.load(target, two_ranks.folder / name)
    loaded = digests(framework, target)
    compared = expected if leaves_own_alone(name) else saved
    assert {leaf: loaded[leaf] for leaf in compared} == {leaf: expected[leaf] for leaf in compared}
