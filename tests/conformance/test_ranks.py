"""Several ranks train like one, and load what they have saved and what others have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from declarations import Declaration, is_readable_by_any_world
from rank_cases import COMPARED_STEPS, leaves_file, methods_for, rank_workload, saved_cases
from subject import SUBJECT, train

QUIRKS = SUBJECT.quirks
ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "ranks.py"
STRATEGIES = tuple(SUBJECT.strategies) or ("none",)
# The strategies that one run of all ranks tries.
GROUPS = [STRATEGIES] if QUIRKS.can_be_started_again else [(name,) for name in STRATEGIES]
TIMEOUT_S = 600

needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun", path=Path(sys.executable).parent) is None,
    reason="mpirun is not installed",
)
pytestmark = [pytest.mark.slow, needs_mpirun]


@dataclass(frozen=True)
class Run:
    """The reports of two, four and one rank, and the folder to which they wrote."""

    strategies: tuple[str, ...]
    folder: Path
    reports: dict[int, list[str]]


@pytest.fixture(scope="module", params=GROUPS, ids="-".join)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Save with two ranks, load with four and one, and train where the framework is asked to."""
    folder = tmp_path_factory.mktemp("ranks")
    reports = {}
    for world, check in ((2, "save"), (4, "load"), (1, "load")):
        checks = [check, "train"] if world in QUIRKS.training_worlds else [check]
        reports[world] = reports_of_ranks(world, folder, request.param, checks)
    return Run(request.param, folder, reports)


def reports_of_ranks(
    world: int, folder: Path, strategies: tuple[str, ...], checks: list[str], script: Path = SCRIPT
) -> list[str]:
    """Return the lines that a run of some ranks prints."""
    mpirun = str(Path(sys.executable).parent / "mpirun")
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [mpirun, "--oversubscribe", "-n", str(world), sys.executable, str(script)]
    command += [str(folder), ",".join(strategies), *checks]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    # Gloo prints lines of its own.
    return [line for line in done.stdout.splitlines() if not line.startswith("[")]


def right(names: list[str]) -> list[str]:
    """Return the lines that ranks report if everything is right."""
    return sorted(f"{name}: right" for name in names)


def is_about_training(line: str) -> bool:
    return line.split()[1] in ("builds", "trains", "averages")


@pytest.mark.parametrize("world", QUIRKS.training_worlds)
def test_ranks_train_together(run: Run, world: int) -> None:
    names = []
    for strategy in run.strategies:
        for case in QUIRKS.trained_cases:
            names += [f"{strategy} builds {case}", f"{strategy} trains {case}"]
        names += [f"{strategy} averages {case}" for case in QUIRKS.averaged_cases]
    assert sorted(filter(is_about_training, run.reports[world])) == right(names)


def test_two_ranks_restore_what_they_saved(run: Run) -> None:
    names = [name for name, _ in checkpoints(run)]
    assert names
    lines = [line for line in run.reports[2] if not is_about_training(line)]
    assert sorted(lines) == right(names)


@pytest.mark.parametrize("world", [4, 1])
def test_another_number_of_ranks_loads_what_two_have_saved(run: Run, world: int) -> None:
    names = []
    for name, declared in checkpoints(run):
        if is_readable_by_any_world(declared) or QUIRKS.refusal is not None:
            names.append(name)
    lines = [line for line in run.reports[world] if not is_about_training(line)]
    assert sorted(lines) == right(names)


def checkpoints(run: Run) -> list[tuple[str, Declaration]]:
    """Return the name and the declared method of every checkpoint that two ranks save."""
    saved = []
    for strategy in run.strategies:
        for case in saved_cases(strategy):
            for name in methods_for(strategy, rank_workload(case)):
                saved.append((f"{name} under {strategy} with {case}", SUBJECT.methods[name]))
    return saved


@pytest.mark.parametrize("case", QUIRKS.averaged_cases)
@pytest.mark.parametrize("world", QUIRKS.training_worlds)
def test_ranks_train_like_one(run: Run, framework: Any, world: int, case: str) -> None:
    """Only the order of float32 sums differs between several ranks and one with all batches."""
    for strategy in run.strategies:
        dropout = QUIRKS.averaged_dropout(strategy)
        workload = rank_workload(case, dropout)
        one_rank = leaves_of_one_rank(framework, case, dropout, QUIRKS.lost_updates(strategy))
        for steps in COMPARED_STEPS:
            with np.load(run.folder / leaves_file(strategy, world, case, steps)) as whole:
                assert whole.files
                for name in whole.files:
                    alone = one_rank[steps][name]
                    together = whole[name].reshape(-1).view(alone.dtype).reshape(alone.shape)
                    difference = np.abs(together.astype(np.float64) - alone).max()
                    tolerance = tolerance_of(name, alone, steps, workload)
                    assert difference <= tolerance, f"{strategy}: {name} after {steps} steps"


def leaves_of_one_rank(
    framework: Any, case: str, dropout: float, lost_updates: int
) -> dict[int, dict[str, Any]]:
    """Return the leaves of a training with all batches but those that several ranks lose."""
    state = framework.build(rank_workload(case, dropout), 1)
    if lost_updates:
        position = {"position/step": memoryview(np.array(lost_updates, np.int64)).cast("B")}
        framework.assign(state, position)
    leaves = {}
    done = 0
    for steps in COMPARED_STEPS:
        train(framework, state, steps - done)
        done = steps
        leaves[steps] = {
            leaf.name: np.frombuffer(bytes(leaf.data), leaf.dtype).reshape(leaf.shape)
            for leaf in framework.leaves(state)
        }
    return leaves


def tolerance_of(name: str, values: Any, steps: int, workload: Any) -> float:
    """Return the largest difference that the order of sums can make in a leaf.

    Adam divides a gradient by its own size in the first steps. Where a gradient is next to nothing,
    two orders of its sum have little in common, and a weight is off by a share of the learning
    rate. So a wrong average shows in the moments, and hardly in the weights.
    """
    if not steps or not name.startswith(("weights/", "optimizer/exp_avg")):
        return 0
    if name.startswith("weights/"):
        return QUIRKS.weight_tolerance(steps) * workload.optimizer.learning_rate
    return QUIRKS.moment_tolerance(steps) * float(np.abs(values).max())
