"""The PyTorch adapter keeps the contract.

Runs in PyTorch's environment, and is skipped in any other.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from declarations import declaration, is_readable_by_any_world

torch = pytest.importorskip("torch")

import workloads  # noqa: E402
from adapters.base import DirectIo, Entry, Leaf, Method, Place  # noqa: E402
from adapters.pytorch import strategies  # noqa: E402
from adapters.pytorch.framework import PyTorch  # noqa: E402
from adapters.pytorch.state import State  # noqa: E402
from workloads import Role, Workload  # noqa: E402

ROOT = Path(__file__).parents[2]
DECLARED = declaration("pytorch")
METHODS: dict[str, dict[str, Any]] = DECLARED["methods"]
STRATEGIES: dict[str, dict[str, Any]] = DECLARED["strategies"]
BROKEN = [name for name in METHODS if "expected_failures" in METHODS[name]]
WORKING = [name for name in METHODS if name not in BROKEN]
RESHARDED = [name for name in WORKING if is_readable_by_any_world(METHODS[name])]
SMALL = [
    (name, precision) for name in workloads.names() for precision in workloads.precisions(name)
]


@pytest.fixture(params=SMALL, ids="-".join)
def workload(request: pytest.FixtureRequest) -> Workload:
    name, precision = request.param
    return workloads.load(name, "small", precision)


@pytest.fixture
def framework(tmp_path: Path) -> Iterator[PyTorch]:
    framework = PyTorch()
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


@pytest.fixture(params=WORKING)
def method(request: pytest.FixtureRequest, framework: PyTorch) -> Method[State]:
    return make(request.param, framework)


def make(name: str, framework: PyTorch) -> Method[State]:
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


def train(framework: PyTorch, state: State, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        framework.gradients(state)
        losses.append(framework.loss(state))
        framework.update(state)
    return losses


def trained(framework: PyTorch, workload: Workload, seed: int, steps: int) -> State:
    state = framework.build(workload, seed)
    train(framework, state, steps)
    return state


def digests(framework: PyTorch, state: State) -> dict[str, str]:
    return {leaf.name: hashlib.sha256(leaf.data).hexdigest() for leaf in framework.leaves(state)}


def spec(leaf: Leaf) -> tuple[str, Role, str, tuple[int, ...]]:
    return leaf.name, leaf.role, leaf.dtype, leaf.shape


def test_the_leaves_are_those_of_the_workload(framework: PyTorch, workload: Workload) -> None:
    leaves = [spec(leaf) for leaf in framework.leaves(framework.build(workload, 1))]
    expected = {(leaf.name, leaf.role, leaf.dtype, leaf.shape) for leaf in workload.leaf_specs()}
    added = {name for name, *_ in leaves} - {name for name, *_ in expected}
    assert expected <= set(leaves)
    assert len({name for name, *_ in leaves}) == len(leaves)
    assert all(
        name in ("rng/cpu", "position/step")
        or name.startswith("optimizer/step/")
        or name.endswith("num_batches_tracked")
        for name in added
    )


def test_the_leaf_bytes_are_those_of_their_type_and_shape(
    framework: PyTorch, workload: Workload
) -> None:
    sizes = {"uint8": 1, "bfloat16": 2, "float32": 4, "int64": 8}
    for leaf in framework.leaves(framework.build(workload, 1)):
        assert leaf.data.format == "B"
        assert leaf.data.nbytes == sizes[leaf.dtype] * torch.Size(leaf.shape).numel()


def test_a_new_state_has_the_workloads_first_values(framework: PyTorch, workload: Workload) -> None:
    state = framework.build(workload, 3)
    for variable in (*workload.parameters, *workload.buffers):
        assert torch.equal(
            state.trained.state_dict()[variable.name],
            torch.from_numpy(workload.initial(variable.name, 3)),
        )


def test_the_leaves_do_not_depend_on_the_step(framework: PyTorch, workload: Workload) -> None:
    state = framework.build(workload, 1)
    before = [spec(leaf) for leaf in framework.leaves(state)]
    train(framework, state, 1)
    assert [spec(leaf) for leaf in framework.leaves(state)] == before


def test_every_leaf_differs_between_seeds_and_steps(framework: PyTorch, workload: Workload) -> None:
    first = digests(framework, trained(framework, workload, 1, 2))
    second = digests(framework, trained(framework, workload, 2, 3))
    assert [name for name in first if first[name] == second[name]] == []


def test_training_is_repeatable(framework: PyTorch, workload: Workload) -> None:
    once, again = (digests(framework, trained(framework, workload, 1, 3)) for _ in range(2))
    assert once == again


def test_the_loss_falls(framework: PyTorch, workload: Workload) -> None:
    losses = train(framework, framework.build(workload, 1), 100)
    assert sum(losses[-10:]) < 0.85 * sum(losses[:10])


def test_a_load_restores_every_leaf_and_training_goes_on_the_same(
    framework: PyTorch, workload: Workload, method: Method[State], tmp_path: Path
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
    framework: PyTorch, workload: Workload, method: Method[State], tmp_path: Path
) -> None:
    state = trained(framework, workload, 1, 2)
    target = framework.build(workload, 2)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
        method.load(target, tmp_path / "checkpoint")
    assert digests(framework, target) == digests(framework, state)


def test_training_behind_a_save_does_not_change_it(
    framework: PyTorch, workload: Workload, method: Method[State], tmp_path: Path
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


def test_leaves_can_be_given_back(framework: PyTorch, workload: Workload) -> None:
    state, other = trained(framework, workload, 1, 2), trained(framework, workload, 2, 1)
    before = digests(framework, other)
    values = {leaf.name: bytes(leaf.data) for leaf in framework.leaves(state)}
    some = {name: memoryview(data) for name, data in values.items() if name.startswith("weights/")}
    framework.assign(other, some)
    after = digests(framework, other)
    assert {name for name in before if after[name] != before[name]} == some.keys()
    framework.assign(other, {name: memoryview(data) for name, data in values.items()})
    assert digests(framework, other) == digests(framework, state)
    train(framework, state, 2)
    train(framework, other, 2)
    assert digests(framework, other) == digests(framework, state)


def test_what_cannot_be_assigned_is_refused(framework: PyTorch) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    with pytest.raises(KeyError, match="weights/nothing"):
        framework.assign(state, {"weights/nothing": memoryview(b"")})
    for size in (1, 7, 9):
        with pytest.raises(ValueError, match="structure"):
            framework.assign(state, {"position/step": memoryview(bytes(size))})


@pytest.mark.parametrize(
    "shape", [("resnet50", "float32"), ("llm-slice", "bf16-mixed")], ids="-".join
)
def test_the_entries_account_for_the_tensors(
    framework: PyTorch, shape: tuple[str, str], method: Method[State], tmp_path: Path
) -> None:
    state = trained(framework, workloads.load(shape[0], "small", shape[1]), 1, 2)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
        entries = list(method.entries(tmp_path / "checkpoint"))
    expected: Counter[Role | None] = Counter()
    raw: Counter[Role | None] = Counter()
    stored: Counter[str] = Counter()
    for leaf in framework.leaves(state):
        expected[leaf.role] += leaf.data.nbytes
    for entry in entries:
        raw[entry.role] += entry.raw_bytes
        stored[entry.file] += entry.stored_bytes
    # The position may be pickled with other objects.
    for role in (Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER, Role.RNG):
        assert raw[role] == expected[role]
    # none of the formats compresses
    assert all(entry.stored_bytes >= entry.raw_bytes for entry in entries)
    assert len({(entry.file, entry.name) for entry in entries}) == len(entries)
    sizes = files(tmp_path / "checkpoint")
    assert all(sizes[file] >= size for file, size in stored.items())


@pytest.mark.parametrize("zipped", [True, False])
def test_memory_that_tensors_share_is_one_entry(
    framework: PyTorch, zipped: bool, tmp_path: Path
) -> None:
    rows = torch.zeros(4, 2)
    torch.save(
        {"model": {"all": rows, "first": rows[0]}},
        tmp_path / "file",
        _use_new_zipfile_serialization=zipped,
    )
    method = make("torch-save" if zipped else "torch-save-legacy", framework)
    assert list(method.entries(tmp_path / "file")) == [
        Entry("file", "model.all", Role.WEIGHT, 32, 32)
    ]


def files(checkpoint: Path) -> dict[str, int]:
    if checkpoint.is_file():
        return {checkpoint.name: checkpoint.stat().st_size}
    return {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in checkpoint.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_failed_save_is_raised(framework: PyTorch, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = make(name, framework)
    with opened(method, state), pytest.raises(Exception, match=r"file|directory"):
        method.save(state, tmp_path / "file" / "checkpoint").finished()


@pytest.mark.parametrize("name", BROKEN)
def test_what_pytorch_breaks_fails_for_the_declared_reason(
    framework: PyTorch, name: str, tmp_path: Path
) -> None:
    """A release that mends it makes this fail: adapter.toml has to follow."""
    [expected] = METHODS[name]["expected_failures"]
    state = trained(framework, workloads.load("resnet50", "small"), 1, 1)
    method = make(name, framework)
    with opened(method, state), pytest.raises(RuntimeError, match=expected["reason"]):
        method.save(state, tmp_path / "checkpoint").finished()


def test_the_tuned_asynchronous_save_leaves_nothing_behind(
    framework: PyTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of the daemon
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    before = leftovers()
    method = make("dcp-async-tuned", framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
    assert leftovers() <= before


def leftovers() -> set[str]:
    children = (Path("/proc/self/task") / str(os.getpid()) / "children").read_text().split()
    temporary = Path(tempfile.gettempdir())
    return {
        *children,
        *map(str, temporary.glob("pymp-*")),
        *map(str, Path("/dev/shm").glob("torch_*")),
    }


def test_every_strategy_is_declared() -> None:
    assert set(STRATEGIES) == set(strategies.STRATEGIES)


def test_ranks_without_a_known_strategy_are_refused(tmp_path: Path) -> None:
    place = Place(
        rank=0,
        world=2,
        device="cpu",
        temporary=tmp_path,
        io=DirectIo(False, 0, 0),
        memory=tmp_path / "memory",
    )
    with pytest.raises(ValueError, match="ddp"):
        strategies.make(place, torch.device("cpu"))


needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun", path=Path(sys.executable).parent) is None,
    reason="mpirun is not installed",
)


@pytest.mark.slow
@needs_mpirun
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_train_together(world: int, tmp_path: Path) -> None:
    verdicts = by_ranks(world, "train", tmp_path)
    assert len(verdicts) == len(STRATEGIES) * 8
    assert wrong(verdicts) == []


@pytest.mark.slow
@needs_mpirun
def test_ranks_restore_what_they_saved_and_so_do_other_numbers_of_ranks(tmp_path: Path) -> None:
    saved = by_ranks(2, "save", tmp_path)
    assert wrong(saved) == []
    for world in (1, 4):
        loaded = by_ranks(world, "load", tmp_path)
        assert len(loaded) == len(saved)
        assert wrong(loaded) == []


def wrong(verdicts: list[str]) -> list[str]:
    return [verdict for verdict in verdicts if not verdict.endswith(": right")]


def by_ranks(world: int, check: str, folder: Path) -> list[str]:
    """Return the verdicts of some ranks."""
    mpirun = str(Path(sys.executable).parent / "mpirun")
    script = str(Path(__file__).parent / "pytorch_ranks.py")
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [
        mpirun,
        "--oversubscribe",
        "-n",
        str(world),
        sys.executable,
        script,
        check,
        str(folder),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # as Gloo's own do
    return [line for line in done.stdout.splitlines() if not line.startswith("[")]
