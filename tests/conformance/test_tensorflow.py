"""The TensorFlow adapter keeps the contract.

Runs in TensorFlow's environment, and is skipped in any other.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from declarations import declaration, is_readable_by_any_world, must_be_named

tf = pytest.importorskip("tensorflow")

import h5py  # noqa: E402

import workloads  # noqa: E402
from adapters.base import Coverage, DirectIo, Entry, Leaf, Method, Place  # noqa: E402
from adapters.tensorflow.framework import TensorFlow  # noqa: E402
from adapters.tensorflow.state import State  # noqa: E402
from workloads import Role, Workload, role_of  # noqa: E402
from workloads.workload import BF16_MIXED, FLOAT32  # noqa: E402

ROOT = Path(__file__).parents[2]
DECLARED = declaration("tensorflow")
METHODS: dict[str, dict[str, Any]] = DECLARED["methods"]
FAILURES = [
    (name, failure) for name in METHODS for failure in METHODS[name].get("expected_failures", [])
]
BREAKS = {
    (name, precision)
    for name, failure in FAILURES
    for precision in (FLOAT32, BF16_MIXED)
    if failure.get("precision", precision) == precision
    and failure.get("experiment", "cost") == "cost"
}
WORKING = [name for name in METHODS if (name, FLOAT32) not in BREAKS]
RESHARDING = [name for name in WORKING if is_readable_by_any_world(METHODS[name])]
FULL = [name for name in WORKING if METHODS[name]["covers"] == "full"]
SMALL = [
    (name, precision) for name in workloads.names() for precision in workloads.precisions(name)
]
CASES = [(name, case) for name in METHODS for case in SMALL if (name, case[1]) not in BREAKS]

TOLD = [("resnet50", FLOAT32), ("llm-slice", BF16_MIXED)]
COPIES = {
    name: dict.fromkeys(Coverage(declared["covers"]).roles, 1) for name, declared in METHODS.items()
}
COPIES["legacy-h5"][Role.OPTIMIZER] = 1  # written, although it cannot be read back
COPIES["saved-model"] = {Role.WEIGHT: 2, Role.BUFFER: 2, Role.RNG: 1}
under_mpirun = pytest.mark.skipif(
    shutil.which("mpirun", path=Path(sys.executable).parent) is None,
    reason="mpirun is not installed",
)

Prepare = Callable[[str, str, int], State]


@pytest.fixture(params=SMALL, ids="-".join)
def workload(request: pytest.FixtureRequest) -> Workload:
    name, precision = request.param
    return workloads.load(name, "small", precision)


@pytest.fixture(scope="module")
def framework(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TensorFlow]:
    framework = TensorFlow()
    temporary = tmp_path_factory.mktemp("temporary")
    framework.start(
        Place(
            rank=0,
            world=1,
            device="cpu",
            temporary=temporary,
            io=DirectIo(False, 0, 0),
            memory=temporary / "memory",
        )
    )
    yield framework
    framework.stop()


@pytest.fixture(scope="module")
def prepared(framework: TensorFlow) -> Prepare:
    """Return trained states, every one compiled once for all tests: only its values are set back."""

    @functools.cache
    def once(name: str, precision: str, seed: int) -> tuple[State, dict[str, Any]]:
        state = trained(framework, workloads.load(name, "small", precision), seed, 5 - seed)
        return state, {name: variable.numpy() for name, variable in state.plain_variables().items()}

    def prepare(name: str, precision: str, seed: int) -> State:
        state, values = once(name, precision, seed)
        for variable_name, variable in state.plain_variables().items():
            variable.assign(values[variable_name])
        return state

    return prepare


def make(name: str, framework: TensorFlow, **options: Any) -> Method[State]:
    module, _, attribute = METHODS[name]["class"].partition(":")
    method_class = getattr(importlib.import_module(module), attribute)
    return method_class(framework.place, framework, METHODS[name].get("options", {}) | options)


@contextmanager
def opened(method: Method[State], state: State) -> Iterator[None]:
    method.open(state)
    try:
        yield
    finally:
        method.close()


def train(framework: TensorFlow, state: State, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        framework.gradients(state)
        losses.append(framework.loss(state))
        framework.update(state)
    return losses


def trained(framework: TensorFlow, workload: Workload, seed: int, steps: int) -> State:
    state = framework.build(workload, seed)
    train(framework, state, steps)
    return state


def digests(framework: TensorFlow, state: State) -> dict[str, str]:
    return {leaf.name: hashlib.sha256(leaf.data).hexdigest() for leaf in framework.leaves(state)}


def covered(name: str, framework: TensorFlow, state: State) -> set[str]:
    roles = Coverage(METHODS[name]["covers"]).roles
    return {leaf.name for leaf in framework.leaves(state) if leaf.role in roles}


def same(first: dict[str, str], second: dict[str, str]) -> set[str]:
    return {name for name in first if first[name] == second[name]}


def save_twice_and_load(method: Method[State], state: State, folder: Path) -> None:
    for name in ("first", "second"):
        method.save(state, folder / name).finished()
    method.load(state, folder / "first")


def saved_entries(name: str, framework: TensorFlow, state: State, path: Path) -> list[Entry]:
    method = make(name, framework)
    with opened(method, state):
        method.save(state, path).finished()
    return list(method.entries(path))


def value(path: Path, entry: Entry) -> bytes:
    """The bytes of an entry, read by the format's own library."""
    file = path / entry.file
    if ".data-" in file.name:
        return tf.train.load_checkpoint(file.with_suffix("")).get_tensor(entry.name).tobytes()
    if file.suffix == ".safetensors":
        content = file.read_bytes()
        header_bytes = 8 + int.from_bytes(content[:8], "little")
        start, stop = json.loads(content[8:header_bytes])[entry.name]["data_offsets"]
        return content[header_bytes + start : header_bytes + stop]
    with ExitStack() as stack:
        content = (
            stack.enter_context(zipfile.Path(file, "model.weights.h5").open("rb"))
            if file.suffix == ".keras"
            else file
        )
        return stack.enter_context(h5py.File(content))[entry.name][()].tobytes()


def spec(leaf: Leaf) -> tuple[str, Role, str, tuple[int, ...]]:
    return leaf.name, leaf.role, leaf.dtype, leaf.shape


def test_the_leaves_are_those_of_the_workload(framework: TensorFlow, workload: Workload) -> None:
    leaves = [spec(leaf) for leaf in framework.leaves(framework.build(workload, 1))]
    expected = {(leaf.name, leaf.role, leaf.dtype, leaf.shape) for leaf in workload.leaf_specs()}
    added = {name for name, *_ in leaves} - {name for name, *_ in expected}
    assert expected <= set(leaves)
    assert len({name for name, *_ in leaves}) == len(leaves)
    assert all(
        name in ("position/step", "optimizer/iterations") or re.fullmatch(r"rng/.*dropout\d?", name)
        for name in added
    )


def test_the_leaf_bytes_are_those_of_their_type_and_shape(
    framework: TensorFlow, workload: Workload
) -> None:
    sizes = {"bfloat16": 2, "float32": 4, "int64": 8}
    for leaf in framework.leaves(framework.build(workload, 1)):
        assert leaf.data.format == "B"
        assert leaf.data.nbytes == sizes[leaf.dtype] * math.prod(leaf.shape)


def test_a_new_state_has_the_workloads_first_values(
    framework: TensorFlow, workload: Workload
) -> None:
    leaves = {
        leaf.name: bytes(leaf.data) for leaf in framework.leaves(framework.build(workload, 3))
    }
    weights = "optimizer/master" if workload.master_weights else "weights"
    for prefix, variables in ((weights, workload.parameters), ("buffers", workload.buffers)):
        for variable in variables:
            assert (
                leaves[f"{prefix}/{variable.name}"] == workload.initial(variable.name, 3).tobytes()
            )


def test_the_leaves_do_not_depend_on_the_step(framework: TensorFlow, workload: Workload) -> None:
    state = framework.build(workload, 1)
    before = [spec(leaf) for leaf in framework.leaves(state)]
    train(framework, state, 1)
    assert [spec(leaf) for leaf in framework.leaves(state)] == before


def test_every_leaf_differs_between_seeds_and_steps(
    framework: TensorFlow, workload: Workload
) -> None:
    first = digests(framework, trained(framework, workload, 1, 2))
    assert same(first, digests(framework, trained(framework, workload, 2, 3))) == set()


def test_training_is_repeatable(framework: TensorFlow, workload: Workload) -> None:
    once, again = (digests(framework, trained(framework, workload, 1, 3)) for _ in range(2))
    assert once == again


def test_gradients_leave_the_weights_and_slots_alone(
    framework: TensorFlow, workload: Workload
) -> None:
    state = trained(framework, workload, 1, 1)
    before = digests(framework, state)
    framework.gradients(state)
    changed = before.keys() - same(before, digests(framework, state))
    assert all(name.startswith(("buffers/", "rng/")) for name in changed)


def test_the_loss_falls(framework: TensorFlow, workload: Workload) -> None:
    losses = train(framework, framework.build(workload, 1), 100)
    assert sum(losses[-10:]) < 0.85 * sum(losses[:10])


def test_the_momentum_is_the_sum_of_gradients_and_not_of_changes(framework: TensorFlow) -> None:
    state = framework.build(workloads.load("resnet50", "small"), 1)
    optimizer = state.workload.optimizer
    first = {name: tensor.canonical() for name, tensor in state.tensors().items()}
    train(framework, state, 1)
    for variable in state.workload.parameters:
        change = (
            first[f"weights/{variable.name}"]
            - state.tensors()[f"weights/{variable.name}"].canonical()
        )
        momentum = state.tensors()[f"optimizer/momentum/{variable.name}"].canonical()
        np.testing.assert_allclose(change, optimizer.learning_rate * momentum, rtol=1e-4, atol=1e-6)


def test_the_running_variance_is_unbiased(framework: TensorFlow) -> None:
    from adapters.tensorflow.modules import BatchNorm

    images = np.random.default_rng(0).standard_normal((4, 2, 2, 3), dtype=np.float32)
    layer = BatchNorm(epsilon=1e-5, momentum=0.1)
    layer(images, training=True)
    np.testing.assert_allclose(
        layer.moving_variance.numpy(), 0.9 + 0.1 * images.var((0, 1, 2), ddof=1), rtol=1e-5
    )
    np.testing.assert_allclose(
        layer.moving_mean.numpy(), 0.1 * images.mean((0, 1, 2)), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("case", SMALL, ids="-".join)
def test_leaves_that_are_assigned_make_the_same_state(
    framework: TensorFlow, prepared: Prepare, case: tuple[str, str]
) -> None:
    state, target = (prepared(*case, seed) for seed in (1, 2))
    framework.assign(
        target, {leaf.name: memoryview(bytes(leaf.data)) for leaf in framework.leaves(state)}
    )
    assert digests(framework, target) == digests(framework, state)
    train(framework, state, 2)
    train(framework, target, 2)
    assert digests(framework, target) == digests(framework, state)


def test_leaves_that_are_not_assigned_stay(framework: TensorFlow, prepared: Prepare) -> None:
    state, target = (prepared("resnet50", FLOAT32, seed) for seed in (1, 2))
    before = digests(framework, target)
    chosen = {
        leaf.name: memoryview(bytes(leaf.data))
        for leaf in framework.leaves(state)
        if leaf.role is Role.OPTIMIZER
    }
    framework.assign(target, chosen)
    assert same(digests(framework, target), digests(framework, state)) == chosen.keys()
    assert same(digests(framework, target), before) == before.keys() - chosen.keys()
    with pytest.raises(KeyError, match="weights/unknown"):
        framework.assign(target, {"weights/unknown": memoryview(b"")})


@pytest.mark.parametrize(("name", "case"), CASES, ids=str)
def test_a_load_restores_what_it_covers_and_nothing_else(
    framework: TensorFlow, prepared: Prepare, name: str, case: tuple[str, str], tmp_path: Path
) -> None:
    state = prepared(*case, 1)
    saved = digests(framework, state)
    method = make(name, framework)
    with opened(method, state):
        pending = method.save(state, tmp_path / "checkpoint")
        pending.staged()
        pending.finished()
        train(framework, state, 2)
        target = prepared(*case, 2)
        method.load(target, tmp_path / "checkpoint")
    assert same(digests(framework, target), saved) == covered(name, framework, state)
    train(framework, target, 2)
    if name in FULL:
        assert digests(framework, target) == digests(framework, state)


@pytest.mark.parametrize("name", WORKING)
def test_a_state_that_has_taken_no_step_can_be_loaded(
    framework: TensorFlow, prepared: Prepare, name: str, tmp_path: Path
) -> None:
    state = prepared("candle-mlp", "float32", 1)
    target = framework.build(state.workload, 2)
    method = make(name, framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
        method.load(target, tmp_path / "checkpoint")
    assert same(digests(framework, target), digests(framework, state)) >= covered(
        name, framework, state
    )


@pytest.mark.parametrize("name", WORKING)
def test_training_behind_a_save_does_not_change_it(
    framework: TensorFlow, prepared: Prepare, name: str, tmp_path: Path
) -> None:
    state, target = (prepared("resnet50", "float32", seed) for seed in (1, 2))
    method = make(name, framework)
    with opened(method, state):
        for number in range(3):  # later saves meet what the first has left to be reused
            saved = digests(framework, state)
            pending = method.save(state, tmp_path / str(number))
            framework.gradients(state)
            pending.staged()
            framework.update(state)
            pending.finished()
            method.load(target, tmp_path / str(number))
            assert same(digests(framework, target), saved) >= covered(name, framework, state)


@pytest.mark.parametrize("name", WORKING)
def test_a_failed_save_is_raised(framework: TensorFlow, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = make(name, framework)
    with opened(method, state), pytest.raises(Exception, match=r"file|directory"):
        method.save(state, tmp_path / "file" / "checkpoint").finished()


@pytest.mark.parametrize(("name", "failure"), FAILURES)
def test_what_tensorflow_breaks_is_still_broken(
    framework: TensorFlow, prepared: Prepare, name: str, failure: dict[str, Any], tmp_path: Path
) -> None:
    case = (
        ("llm-slice", BF16_MIXED)
        if failure.get("precision") == BF16_MIXED
        else ("candle-mlp", FLOAT32)
    )
    state = prepared(*case, 1)
    method = make(name, framework)
    with opened(method, state), pytest.raises(Exception) as raised:  # noqa: B017, PT011  # matched below, as a run does it
        save_twice_and_load(method, state, tmp_path)
    assert re.search(failure["reason"], " ".join(f"{raised.typename}: {raised.value}".split()))


@pytest.mark.parametrize("case", TOLD, ids="-".join)
@pytest.mark.parametrize("name", METHODS)
def test_the_entries_of_a_role_are_as_large_as_its_leaves(
    framework: TensorFlow, prepared: Prepare, name: str, case: tuple[str, str], tmp_path: Path
) -> None:
    state = prepared(*case, 1)
    told: Counter[Role] = Counter()
    for entry in saved_entries(name, framework, state, tmp_path / "checkpoint"):
        if entry.role is not None:
            told[entry.role] += entry.raw_bytes
    expected: Counter[Role] = Counter()
    for leaf in framework.leaves(state):
        expected[leaf.role] += COPIES[name].get(leaf.role, 0) * leaf.data.nbytes
    assert told == expected


@pytest.mark.parametrize("case", TOLD, ids="-".join)
@pytest.mark.parametrize("name", METHODS)
def test_the_entries_of_a_role_have_the_values_of_its_variables(
    framework: TensorFlow, prepared: Prepare, name: str, case: tuple[str, str], tmp_path: Path
) -> None:
    state = prepared(*case, 1)
    told: Counter[tuple[Role, bytes]] = Counter()
    for entry in saved_entries(name, framework, state, tmp_path / "checkpoint"):
        if entry.role is not None:
            told[entry.role, value(tmp_path / "checkpoint", entry)] += 1
    expected: Counter[tuple[Role, bytes]] = Counter()
    for variable_name, variable in state.plain_variables().items():
        role = role_of(variable_name)
        expected[role, variable.numpy().tobytes()] += COPIES[name].get(role, 0)
    assert told == expected


@pytest.mark.parametrize("case", TOLD, ids="-".join)
@pytest.mark.parametrize("name", METHODS)
def test_the_entries_fit_into_their_files(
    framework: TensorFlow, prepared: Prepare, name: str, case: tuple[str, str], tmp_path: Path
) -> None:
    stored: Counter[str] = Counter()
    for entry in saved_entries(name, framework, prepared(*case, 1), tmp_path / "checkpoint"):
        stored[entry.file] += entry.stored_bytes
    for file, stored_bytes in stored.items():
        left = (tmp_path / "checkpoint" / file).stat().st_size - stored_bytes
        assert left >= 0
        # a bundle holds nothing else but the length and the checksum of its one text
        assert left <= 8 or ".data-" not in file


@pytest.mark.parametrize("name", ["keras", "legacy-h5", "weights-h5", "weights-sharded"])
def test_the_entry_without_a_role_is_the_learning_rate(
    framework: TensorFlow, prepared: Prepare, name: str, tmp_path: Path
) -> None:
    state = prepared("resnet50", FLOAT32, 1)
    entries = saved_entries(name, framework, state, tmp_path / "checkpoint")
    (rate,) = [value(tmp_path / "checkpoint", entry) for entry in entries if entry.role is None]
    assert rate == np.float32(state.workload.optimizer.learning_rate).tobytes()


def test_keras_files_are_not_compressed(
    framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    make("keras", framework).save(prepared("candle-mlp", FLOAT32, 1), tmp_path / "checkpoint")
    with zipfile.ZipFile(tmp_path / "checkpoint" / "model.keras") as archive:
        assert all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())


def test_an_asynchronous_save_ends_its_thread(framework: TensorFlow, tmp_path: Path) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = make("tf-checkpoint-async", framework)
    before = threading.active_count()
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_an_asynchronous_save_can_go_on_with_another_state(
    framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    first, second = (prepared("candle-mlp", "float32", seed) for seed in (1, 2))
    method = make("tf-checkpoint-async", framework)
    with opened(method, first):
        method.save(first, tmp_path / "first").finished()
        method.save(second, tmp_path / "second").finished()
        method.load(first, tmp_path / "second")
    assert digests(framework, first) == digests(framework, second)


def test_sync_alone_keeps_the_error_of_an_asynchronous_write(
    framework: TensorFlow, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = make("tf-checkpoint-async", framework)
    method.open(state)
    method.save(state, tmp_path / "file" / "checkpoint")
    method._checkpoint.sync()  # reports nothing: the reason why `finished` asks on
    with pytest.raises(Exception, match=r"file|directory"):
        method.close()


def test_sharded_weights_are_several_files(
    framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    make("weights-sharded", framework).save(
        prepared("resnet50", "float32", 1), tmp_path / "checkpoint"
    )
    assert len(list((tmp_path / "checkpoint").glob("*.weights.h5"))) > 1


def test_the_legacy_file_gives_no_optimizer_back(
    framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    import keras

    make("legacy-h5", framework).save(prepared("candle-mlp", "float32", 1), tmp_path / "checkpoint")
    loaded = keras.saving.load_model(tmp_path / "checkpoint" / "model.h5")
    assert all(slots == [] for slots in loaded.optimizer.slots.values())


def test_a_saved_model_holds_every_weight_twice(
    framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    state = prepared("candle-mlp", "float32", 1)
    make("saved-model", framework).save(state, tmp_path / "checkpoint")
    weights = sum(leaf.data.nbytes for leaf in framework.leaves(state) if leaf.role is Role.WEIGHT)
    written = sum(
        path.stat().st_size for path in (tmp_path / "checkpoint" / "variables").glob("*.data-*")
    )
    assert written > 2 * weights


def test_keras_spoils_a_model_by_saving_it_as_legacy_file(
    framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    state = prepared("candle-mlp", "float32", 1)
    make("legacy-h5", framework).save(state, tmp_path / "checkpoint")
    assert "optimizer" in state.model.get_compile_config()
    state.model.save(tmp_path / "model.h5")
    # else `LegacyFile` need not compile the model anew
    assert "optimizer" not in state.model.get_compile_config()
    state.compile()


def test_a_cuda_device_that_is_not_there_is_unsupported(
    framework: TensorFlow, workload: Workload
) -> None:
    assert "finds no CUDA device" in (framework.unsupported(workload, "cuda") or "")
    assert framework.unsupported(workload, "cpu") is None


@pytest.mark.slow
@under_mpirun
def test_four_ranks_train_as_one() -> None:
    run_ranks(4, "training", *DECLARED["strategies"])


@pytest.mark.slow
@under_mpirun
def test_two_ranks_restore_what_they_saved_and_other_worlds_what_they_shared(
    tmp_path: Path,
) -> None:
    run_ranks(
        2, "methods", str(tmp_path), *(name for name in WORKING if not must_be_named(METHODS[name]))
    )
    for world in (4, 1):
        run_ranks(world, "reshard", str(tmp_path), *RESHARDING)


def run_ranks(world: int, *arguments: str) -> None:
    """Have every rank do a check of tensorflow_ranks.py, and see that it found nothing wrong."""
    mpirun = str(Path(sys.executable).parent / "mpirun")
    script = str(Path(__file__).parent / "tensorflow_ranks.py")
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [mpirun, "--oversubscribe", "-n", str(world), sys.executable, script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["as declared"] * world
