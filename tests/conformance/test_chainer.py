"""The Chainer adapter keeps the contract.

Runs in Chainer's environment, and is skipped in any other.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from declarations import declaration, is_readable_by_any_world, must_be_named

chainer = pytest.importorskip("chainer")

import chainer.functions as F  # noqa: E402, N812
import numpy as np  # noqa: E402
from chainer.backends import cuda  # noqa: E402
from chainer.training.extensions import snapshot_writers  # noqa: E402

import workloads  # noqa: E402
from adapters.base import Coverage, DirectIo, Entry, Leaf, Method, Place  # noqa: E402
from adapters.chainer import modules  # noqa: E402
from adapters.chainer.framework import Chainer  # noqa: E402
from adapters.chainer.modules import embed_by_product, parameters  # noqa: E402
from adapters.chainer.snapshot import ReportingWriter  # noqa: E402
from adapters.chainer.state import SLOTS, State  # noqa: E402
from workloads import Role, Workload  # noqa: E402
from workloads.workload import BF16_MIXED, FLOAT32  # noqa: E402

ROOT = Path(__file__).parents[2]
DECLARED = declaration("chainer")
METHODS: dict[str, dict[str, Any]] = DECLARED["methods"]
STRATEGIES = list(DECLARED["strategies"])
SOUND = [name for name, declared in METHODS.items() if "expected_failures" not in declared]
FULL = [name for name in METHODS if METHODS[name]["covers"] == "full"]
RESHARDING = [name for name in SOUND if is_readable_by_any_world(METHODS[name])]
BACKGROUND = ["snapshot-thread-copy", "snapshot-process"]
HEADER_BYTES = {"npz": 128, "hdf5": 0}  # numpy's, before every array of an archive
# the methods that write Chainer's own formats
OWN = [name for name in METHODS if METHODS[name]["format"] in HEADER_BYTES]
EPOCH_BYTES = 8  # a number that Chainer saves with the optimizer, and that nothing here counts

under_mpirun = pytest.mark.skipif(
    shutil.which("mpirun", path=Path(sys.executable).parent) is None,
    reason="mpirun is not installed",
)


@pytest.fixture(params=workloads.names())
def workload(request: pytest.FixtureRequest) -> Workload:
    return workloads.load(request.param, "small")


@pytest.fixture
def framework(tmp_path: Path) -> Iterator[Chainer]:
    framework = Chainer()
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


def make(name: str, framework: Chainer) -> Method[State]:
    module, _, attribute = METHODS[name]["class"].partition(":")
    return getattr(importlib.import_module(module), attribute)(
        framework.place, framework, METHODS[name].get("options", {})
    )


@contextmanager
def opened(method: Method[State], state: State) -> Iterator[None]:
    method.open(state)
    try:
        yield
    finally:
        method.close()


def train(framework: Chainer, state: State, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        framework.gradients(state)
        losses.append(framework.loss(state))
        framework.update(state)
    return losses


def trained(framework: Chainer, workload: Workload, seed: int, steps: int) -> State:
    state = framework.build(workload, seed)
    train(framework, state, steps)
    return state


def digests(framework: Chainer, state: State) -> dict[str, str]:
    return {leaf.name: hashlib.sha256(leaf.data).hexdigest() for leaf in framework.leaves(state)}


def covered(name: str, framework: Chainer, state: State) -> set[str]:
    roles = Coverage(METHODS[name]["covers"]).roles
    return {leaf.name for leaf in framework.leaves(state) if leaf.role in roles}


def same(first: dict[str, str], second: dict[str, str]) -> set[str]:
    return {name for name in first if first[name] == second[name]}


def spec(leaf: Leaf) -> tuple[str, Role, str, tuple[int, ...]]:
    return leaf.name, leaf.role, leaf.dtype, leaf.shape


def test_the_leaves_are_those_of_the_workload(framework: Chainer, workload: Workload) -> None:
    leaves = [spec(leaf) for leaf in framework.leaves(framework.build(workload, 1))]
    expected = {(leaf.name, leaf.role, leaf.dtype, leaf.shape) for leaf in workload.leaf_specs()}
    added = {name for name, *_ in leaves} - {name for name, *_ in expected}
    counters = {"optimizer/step"} | {
        f"optimizer/step/{variable.name}" for variable in workload.parameters
    }
    assert expected <= set(leaves)
    assert len({name for name, *_ in leaves}) == len(leaves)
    assert added == {"rng/numpy", "position/step"} | counters


def test_the_leaf_bytes_are_those_of_their_type_and_shape(
    framework: Chainer, workload: Workload
) -> None:
    for leaf in framework.leaves(framework.build(workload, 1)):
        assert leaf.data.format == "B"
        assert leaf.data.nbytes == np.dtype(leaf.dtype).itemsize * math.prod(leaf.shape)


def test_a_new_state_has_the_workloads_first_values(framework: Chainer, workload: Workload) -> None:
    arrays = framework.build(workload, 3).arrays()
    for folder, variables in (("weights", workload.parameters), ("buffers", workload.buffers)):
        for variable in variables:
            assert np.array_equal(
                arrays[f"{folder}/{variable.name}"], workload.initial(variable.name, 3)
            )


def test_the_leaves_do_not_depend_on_the_step(framework: Chainer, workload: Workload) -> None:
    state = framework.build(workload, 1)
    before = [spec(leaf) for leaf in framework.leaves(state)]
    train(framework, state, 1)
    assert [spec(leaf) for leaf in framework.leaves(state)] == before


def test_every_leaf_differs_between_seeds_and_steps(framework: Chainer, workload: Workload) -> None:
    first = digests(framework, trained(framework, workload, 1, 2))
    second = digests(framework, trained(framework, workload, 2, 3))
    assert [name for name in first if first[name] == second[name]] == []


def test_training_is_repeatable(framework: Chainer, workload: Workload) -> None:
    once, again = (digests(framework, trained(framework, workload, 1, 3)) for _ in range(2))
    assert once == again


def test_the_loss_falls(framework: Chainer, workload: Workload) -> None:
    losses = train(framework, framework.build(workload, 1), 100)
    assert sum(losses[-10:]) < 0.85 * sum(losses[:10])


def test_momentum_is_the_workloads_and_not_chainers(framework: Chainer) -> None:
    workload = workloads.load("resnet50", "small")
    state = trained(framework, workload, 1, 2)
    before = {name: array.copy() for name, array in state.arrays().items()}
    framework.gradients(state)
    gradients = {name: parameter.grad.copy() for name, parameter in parameters(state.model).items()}
    framework.update(state)
    definition = workload.optimizer
    for name, array in state.arrays().items():
        if name.startswith("optimizer/momentum/"):
            weight = name.removeprefix("optimizer/momentum/")
            slot = (
                definition.momentum * before[name]
                + gradients[weight]
                + definition.weight_decay * before[f"weights/{weight}"]
            )
            moved = before[f"weights/{weight}"] - definition.learning_rate * slot
            np.testing.assert_allclose(array, slot, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(
                state.arrays()[f"weights/{weight}"], moved, rtol=1e-5, atol=1e-7
            )


def test_adam_adds_epsilon_where_the_workload_does(framework: Chainer) -> None:
    state = framework.build(workloads.load("llm-slice", "small"), 1)
    optimizer = state.optimizer
    optimizer.epsilon = 1e-3  # large enough to see where it goes
    parameter = parameters(state.model)["head.weight"]
    moments = [np.zeros(parameter.shape) for _ in range(2)]
    expected = parameter.array.astype(np.float64)
    for step in range(1, 4):
        framework.gradients(state)
        gradient = parameter.grad.astype(np.float64)
        decays = (optimizer.beta1, optimizer.beta2)
        moments = [
            decay * moment + (1 - decay) * power
            for decay, moment, power in zip(decays, moments, (gradient, gradient**2), strict=True)
        ]
        first, second = (
            moment / (1 - decay**step) for decay, moment in zip(decays, moments, strict=True)
        )
        expected -= optimizer.alpha * first / (np.sqrt(second) + optimizer.epsilon)
        framework.update(state)
    for slot, moment in zip(("exp_avg", "exp_avg_sq"), moments, strict=True):
        np.testing.assert_allclose(
            parameter.update_rule.state[SLOTS[slot]],
            moment,
            rtol=1e-5,
            atol=1e-5 * np.abs(moment).max(),
        )
    np.testing.assert_allclose(parameter.array, expected, rtol=0, atol=1e-7)


def test_the_running_variance_is_the_unbiased_one(framework: Chainer) -> None:
    state = framework.build(workloads.load("resnet50", "small"), 1)
    images = state.workload.batch(0, 0, 1).inputs
    stem = state.model.stem.convolution(images).array.astype(np.float64)
    framework.gradients(state)
    expected = 0.9 + 0.1 * stem.var(axis=(0, 2, 3), ddof=1)
    np.testing.assert_allclose(state.arrays()["buffers/stem.norm.running_var"], expected, rtol=1e-6)


def test_the_look_up_of_a_gpu_is_that_of_a_cpu() -> None:
    random = np.random.default_rng(1)
    tokens = random.integers(0, 11, (3, 5)).astype(np.int32)
    values = random.normal(size=(11, 4)).astype(np.float32)
    gradient = random.normal(size=(3, 5, 4)).astype(np.float32)
    found, gradients = [], []
    for look_up in (F.embed_id, embed_by_product):
        table = chainer.Parameter(values.copy())
        embedded = look_up(tokens, table)
        embedded.grad = gradient
        embedded.backward()
        found.append(embedded.array)
        gradients.append(table.grad)
    assert np.array_equal(*found)
    np.testing.assert_allclose(*gradients, rtol=1e-6)


def test_tokens_are_looked_up_as_chainer_does_on_a_cpu(
    framework: Chainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "embed_by_product", None)
    train(framework, framework.build(workloads.load("llm-slice", "small"), seed=1), 1)


def test_what_cannot_be_held_is_said() -> None:
    mixed = workloads.load("llm-slice", "small", BF16_MIXED)
    plain = workloads.load("llm-slice", "small", FLOAT32)
    assert Chainer.unsupported(mixed, "cpu") == "Chainer has no bfloat16"
    assert Chainer.unsupported(plain, "cpu") is None


@pytest.mark.skipif(cuda.available, reason="CuPy is installed")
def test_a_missing_cupy_is_the_reason(tmp_path: Path) -> None:
    framework = Chainer()
    framework.start(
        Place(
            rank=0,
            world=1,
            device="cuda",
            temporary=tmp_path,
            io=DirectIo(False, 0, 0),
            memory=tmp_path / "memory",
        )
    )
    reason = framework.unsupported(workloads.load("llm-slice", "small"), "cuda")
    assert reason is not None
    assert "No module named 'cupy'" in reason


def test_leaves_that_are_assigned_make_the_same_state(
    framework: Chainer, workload: Workload
) -> None:
    state, target = trained(framework, workload, 1, 3), trained(framework, workload, 2, 1)
    arrays = target.arrays()
    framework.assign(
        target, {leaf.name: memoryview(bytes(leaf.data)) for leaf in framework.leaves(state)}
    )
    assert digests(framework, target) == digests(framework, state)
    assert all(
        arrays[name] is target.arrays()[name]
        for name in arrays
        if name.startswith(("weights", "buffers", "rng"))
    )
    train(framework, state, 2)
    train(framework, target, 2)
    assert digests(framework, target) == digests(framework, state)


def test_leaves_that_are_not_assigned_stay(framework: Chainer) -> None:
    workload = workloads.load("candle-mlp", "small")
    state, target = trained(framework, workload, 1, 3), trained(framework, workload, 2, 1)
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


@pytest.mark.parametrize("name", METHODS)
def test_a_load_restores_what_it_covers_and_nothing_else(
    framework: Chainer, workload: Workload, name: str, tmp_path: Path
) -> None:
    state = trained(framework, workload, 1, 3)
    saved = digests(framework, state)
    method = make(name, framework)
    with opened(method, state):
        pending = method.save(state, tmp_path / "checkpoint")
        pending.staged()
        pending.finished()
        train(framework, state, 2)
        target = trained(framework, workload, 2, 1)
        method.load(target, tmp_path / "checkpoint")
    assert same(digests(framework, target), saved) == covered(name, framework, state)
    train(framework, target, 2)
    if name in FULL:
        assert digests(framework, target) == digests(framework, state)


@pytest.mark.parametrize("name", METHODS)
def test_a_state_that_has_taken_no_step_can_be_loaded(
    framework: Chainer, workload: Workload, name: str, tmp_path: Path
) -> None:
    state = trained(framework, workload, 1, 2)
    target = framework.build(workload, 2)
    arrays = target.arrays()
    method = make(name, framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
        method.load(target, tmp_path / "checkpoint")
    assert same(digests(framework, target), digests(framework, state)) == covered(
        name, framework, state
    )
    assert all(
        arrays[name] is target.arrays()[name]
        for name in arrays
        if name.startswith(("weights", "buffers", "rng"))
    )


@pytest.mark.parametrize("name", OWN)
def test_the_entries_come_to_the_state(
    framework: Chainer, workload: Workload, name: str, tmp_path: Path
) -> None:
    state = trained(framework, workload, 1, 2)
    expected = role_bytes(framework, state)
    expected[Role.OPTIMIZER] += EPOCH_BYTES
    roles = Coverage(METHODS[name]["covers"]).roles
    entries = saved_entries(framework, state, name, tmp_path / "checkpoint")
    header_bytes = HEADER_BYTES[METHODS[name]["format"]]
    for role in Role:
        told_bytes = sum(entry.raw_bytes - header_bytes for entry in entries if entry.role is role)
        assert told_bytes == (expected[role] if role in roles else 0)
    assert {
        entry.name.removesuffix(".npy").rpartition("/")[2]
        for entry in entries
        if entry.role is None
    } <= {"N"}


@pytest.mark.parametrize("name", OWN)
def test_the_entries_take_what_the_files_have(
    framework: Chainer, workload: Workload, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    entries = saved_entries(framework, trained(framework, workload, 1, 2), name, path)
    sizes = {
        file.name: file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path])
    }
    assert {entry.file for entry in entries} == sizes.keys()
    for file, size in sizes.items():
        assert (
            0.5 * size < sum(entry.stored_bytes for entry in entries if entry.file == file) <= size
        )
    slots = [entry for entry in entries if entry.role is Role.OPTIMIZER]
    if METHODS[name].get("compressed"):
        assert sum(entry.stored_bytes for entry in slots) < sum(entry.raw_bytes for entry in slots)
    else:
        assert all(entry.stored_bytes == entry.raw_bytes for entry in entries)


def saved_entries(framework: Chainer, state: State, name: str, path: Path) -> list[Entry]:
    method = make(name, framework)
    with opened(method, state):
        method.save(state, path).finished()
        return list(method.entries(path))


def role_bytes(framework: Chainer, state: State) -> Counter[Role]:
    found: Counter[Role] = Counter()
    for leaf in framework.leaves(state):
        found[leaf.role] += leaf.data.nbytes
    return found


@pytest.mark.parametrize("name", SOUND)
def test_training_behind_a_save_does_not_change_it(
    framework: Chainer, workload: Workload, name: str, tmp_path: Path
) -> None:
    state = trained(framework, workload, 1, 2)
    target = trained(framework, workload, 2, 1)
    method = make(name, framework)
    with opened(method, state):
        for number in range(3):
            saved = digests(framework, state)
            pending = method.save(state, tmp_path / str(number))
            framework.gradients(state)
            pending.staged()
            framework.update(state)
            pending.finished()
            method.load(target, tmp_path / str(number))
            assert same(digests(framework, target), saved) >= covered(name, framework, state)


@pytest.mark.parametrize(
    ("name", "sound"), [("snapshot-thread", False), ("snapshot-thread-copy", True)]
)
def test_a_late_thread_as_shipped_writes_what_training_has_made_of_the_state(
    framework: Chainer, name: str, sound: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updated, write = threading.Event(), snapshot_writers.Writer.save

    def write_late(*args: Any, **kwds: Any) -> None:
        updated.wait(60)
        write(*args, **kwds)

    monkeypatch.setattr(snapshot_writers.Writer, "save", write_late)
    workload = workloads.load("resnet50", "small")
    state, target = trained(framework, workload, 1, 2), framework.build(workload, 2)
    saved = digests(framework, state)
    method = make(name, framework)
    with opened(method, state):
        pending = method.save(state, tmp_path / "checkpoint")
        train(framework, state, 1)
        updated.set()
        pending.finished()
        method.load(target, tmp_path / "checkpoint")
    later, loaded = digests(framework, state), digests(framework, target)
    arrays = [
        leaf
        for leaf in saved
        if leaf.startswith(("weights/", "buffers/", "optimizer/momentum/", "rng/"))
    ]
    expected = saved if sound else later
    assert {leaf: loaded[leaf] for leaf in arrays} == {leaf: expected[leaf] for leaf in arrays}
    assert (name in SOUND) is sound  # what adapter.toml expects is what happens


@pytest.mark.parametrize("name", METHODS)
def test_a_failed_save_is_raised(framework: Chainer, name: str, tmp_path: Path) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = make(name, framework)
    with opened(method, state):
        with pytest.raises(OSError, match=r"No such file or directory|Not a directory"):
            method.save(state, tmp_path / "missing" / "checkpoint").finished()
        method.save(state, tmp_path / "checkpoint").finished()  # the method still works
    assert (tmp_path / "checkpoint").stat().st_size > 0


@pytest.mark.parametrize("name", ["snapshot-thread", *BACKGROUND])
def test_a_write_that_fails_behind_the_training_is_raised_at_the_end(
    framework: Chainer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwds: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", fail)
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = make(name, framework)
    with opened(method, state):
        pending = method.save(state, tmp_path / "checkpoint")
        pending.staged()
        train(framework, state, 1)
        with pytest.raises(OSError, match="No space left on device"):
            pending.finished()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_is_noticed(
    framework: Chainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ReportingWriter, "save", lambda *args, **kwds: os.kill(os.getpid(), signal.SIGKILL)
    )
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = make("snapshot-process", framework)
    with opened(method, state), pytest.raises(RuntimeError, match="ended without a report"):
        method.save(state, tmp_path / "checkpoint").finished()


@pytest.mark.parametrize("name", BACKGROUND)
def test_a_snapshot_leaves_nothing_behind(framework: Chainer, name: str, tmp_path: Path) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    before = leftovers()
    method = make(name, framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint")  # closed without waiting for the save
    assert leftovers() == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def leftovers() -> tuple[set[str], set[str], set[str]]:
    """Threads, child processes and descriptors."""
    children = (Path("/proc/self/task") / str(os.getpid()) / "children").read_text().split()
    threads = {thread.name for thread in threading.enumerate()}
    return (
        threads,
        set(children),
        {
            number
            for number in os.listdir("/proc/self/fd")
            if Path(f"/proc/self/fd/{number}").exists()
        },
    )


@pytest.mark.slow
@under_mpirun
def test_four_ranks_train_as_one() -> None:
    run_ranks(4, "training", *STRATEGIES)


@pytest.mark.slow
@under_mpirun
def test_two_ranks_restore_what_they_saved_and_other_worlds_what_they_shared(
    tmp_path: Path,
) -> None:
    run_ranks(
        2, "methods", str(tmp_path), *(name for name in SOUND if not must_be_named(METHODS[name]))
    )
    for world in (4, 1):
        run_ranks(world, "reshard", str(tmp_path), *RESHARDING)


def run_ranks(world: int, *arguments: str) -> None:
    """Have every rank do a check of chainer_ranks.py, and see that it found nothing wrong."""
    mpirun = str(Path(sys.executable).parent / "mpirun")
    script = str(Path(__file__).parent / "chainer_ranks.py")
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
