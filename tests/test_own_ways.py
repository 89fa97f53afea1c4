"""The own way back of each framework, with ranks of that framework that are really killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT, measure_cases

from harness.cli.measuring import only_arm
from harness.driver import catalog, planning, suite
from harness.driver.environments import Environments
from harness.experiments.recovery.plans import KILLS
from harness.experiments.recovery.rows import RecoveryRow

pytestmark = [pytest.mark.slow, pytest.mark.patient]

# How many of six kills on two ranks it comes back from. Process 0 of JAX coordinates the others, so
# its death ends all of them.
COMES_BACK = {
    ("pytorch", "torchrun"): KILLS,
    ("tensorflow", "multiworker"): KILLS,
    ("jax", "live-devices"): 2,
    ("chainer", "chainermn"): KILLS,
}


@pytest.mark.parametrize(("framework", "way"), COMES_BACK)
def test_the_own_way_of_a_framework_comes_back_with_the_bits_that_it_must_have(
    framework: str, way: str, tmp_path: Path, scratch: Path
) -> None:
    if not (ROOT / ".venvs" / framework).exists():
        pytest.skip(f"no environment of {framework}; run: make environments")
    environments = Environments(ROOT / ".venvs", ROOT / "adapters", {})
    every_way = planning.plan(
        suite.load("recovery-full"),
        [catalog.frameworks()[framework]],
        workloads=["resnet50"],
        worlds=[2],
    )
    chosen = [
        item
        for item in every_way
        if (item.case.experiment, item.case.settings["way"]) == ("recovery", way)
    ]
    run = measure_cases(
        chosen, tmp_path / "results", scratch, timeout_s=180, arms={"": only_arm(environments)}
    )
    (row,) = run.rows
    assert isinstance(row, RecoveryRow)
    assert (row.status, row.reason) == ("ok", "")
    assert (row.came_back, row.kills) == (COMES_BACK[framework, way], KILLS)
    assert (row.wrong_bits, row.marks) == (0, [])
