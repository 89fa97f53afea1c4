"""Runs of the way `torchft` with ranks of PyTorch that are really killed, and come back."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from conftest import ROOT, Measure
from toy_framework import read_suite, sweeps_of

from harness.driver import catalog, planning
from harness.driver.arms import Arm
from harness.driver.environments import Environments
from harness.experiments.recovery.plans import KILLS
from harness.experiments.recovery.rows import PARTS, RecoveryRow

NAME = "pytorch+torchft"
PYTHON = ROOT / ".venvs" / NAME / "bin" / "python"
IMPATIENCE_S = 300  # beside other tests, imports take a minute

pytestmark = [
    pytest.mark.slow,
    pytest.mark.patient,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"the environment {NAME} is not made"),
]


@pytest.mark.parametrize("world", [2, 4])
def test_a_killed_rank_is_started_again_and_heals_from_a_peer(
    measure: Measure, tmp_path: Path, world: int
) -> None:
    framework = catalog.frameworks()["pytorch"]
    text = sweeps_of(
        {
            "experiment": "recovery",
            "workload": "resnet50",
            "method": "default",
            "way": "torchft",
            "world": world,
            "samples": None,
        }
    )
    [item] = planning.plan(read_suite(tmp_path, text), [framework])
    assert item.case.environment == NAME
    environments = Environments(ROOT / ".venvs", ROOT / "adapters", {}, known=[framework])
    arms = {"": Arm(environments, framework.packages_of())}
    [row] = measure([item], IMPATIENCE_S, arms=arms).rows
    assert isinstance(row, RecoveryRow)
    assert (row.status, row.reason) == ("ok", "")
    assert (row.kills, row.came_back) == (KILLS, KILLS), row.not_back
    assert set(row.ranks_after) == {world}
    assert row.steps_recomputed == 0
    assert row.back is not None
    assert row.paused is not None
    assert row.paused.value <= row.back.value
    assert all(row.part(name) is not None for name in PARTS)
    after_exchange = [kill for kill in row.each_kill if kill["instant"].startswith("after")]
    assert [kill["same_as"] for kill in after_exchange] == ["all ranks"]
    assert leftovers() == []


def leftovers() -> list[list[str]]:
    """Return the commands of launchers and ranks that still run in this environment."""
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if command and command[0] == str(PYTHON)]
