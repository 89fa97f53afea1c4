"""The replay against another simulator, and against what is published of real systems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.intervals import consistency, replay
from harness.intervals.costs import Costs
from harness.intervals.expected import effective_share
from harness.intervals.failures import NodeFailures

# Jobs that AIReSim simulated (karthikp-ubc/airesim on GitHub, commit 7b139c7), with the failures
# and repairs that it drew: one stage of repair, which takes 12 hours on average and always works, a
# failure of each server in 50 days, and 20 minutes to recover.
RUNS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "airesim.json").read_text()
)


def replayed(run: dict[str, Any]) -> tuple[replay.Interruptions, float]:
    """Return the interruptions of a job, and the share of the time in which it trains."""
    at_s, node, repair_s = np.array(run["failures"]).T
    found = NodeFailures(
        run["nodes"] + run["standbys"],
        run["total_s"],
        at_s,
        node.astype(int),
        repair_s,
        np.ones(len(at_s), dtype=bool),
    )
    interruptions = replay.interruptions(found, run["nodes"])
    # AIReSim has no checkpoints, so nothing is done again.
    costs = Costs(training_s=0.0, restart_s=run["recovery_s"])
    share = replay.effective_shares(interruptions, [costs], np.array([[1.0]]))
    return interruptions, float(share[0, 0])


@pytest.mark.parametrize("run", [run for run in RUNS if not run["standbys"]])
def test_without_spares_the_replay_trains_as_long_as_airesim(run: dict[str, Any]) -> None:
    """AIReSim recovers while it waits for the repair, and the replay after it."""
    interruptions, share = replayed(run)
    overlap_s = np.minimum(interruptions.wait_s, run["recovery_s"]).sum()
    assert share + overlap_s / run["total_s"] == pytest.approx(
        run["length_s"] / run["total_s"], abs=5e-4
    )


def test_with_spares_enough_the_replay_trains_as_long_as_airesim() -> None:
    """AIReSim's spares never fail, and those of the replay do. So it counts a few less failures."""
    (run,) = [run for run in RUNS if run["standbys"] == 16]
    interruptions, share = replayed(run)
    assert not interruptions.wait_s.any()
    fewer = len(run["failures"]) - len(interruptions.at_s)
    assert 0 < fewer < 0.06 * len(run["failures"])
    wanted = run["length_s"] / run["total_s"]
    assert share == pytest.approx(wanted + fewer * run["recovery_s"] / run["total_s"], abs=1e-3)


def test_airesim_waits_for_all_standbys_where_they_run_out() -> None:
    """The replay goes on as soon as one is back, so it trains longer. The rules differ here."""
    (run,) = [run for run in RUNS if run["standbys"] == 4]
    _, share = replayed(run)
    assert 0.01 < share - run["length_s"] / run["total_s"] < 0.03


# Published figures


def test_a_published_share_admits_the_intervals_that_the_formula_puts_there() -> None:
    for system in consistency.SYSTEMS:
        found = consistency.settings(system)
        assert any(setting.intervals_s for setting in found), system.name
        for setting in found:
            costs = Costs(setting.cost_s, restart_s=setting.restart_s)
            for low_s, high_s in setting.intervals_s:
                inside_s = np.linspace(1.0001 * low_s, 0.9999 * high_s, 20)
                shares = [effective_share(costs, each, system.mtbf_s) for each in inside_s]
                assert all(system.low <= share <= system.high for share in shares)
                for outside_s in (0.999 * low_s, 1.001 * high_s):
                    share = effective_share(costs, outside_s, system.mtbf_s)
                    assert not system.low <= share <= system.high


def test_a_share_that_no_interval_reaches_admits_none() -> None:
    impossible = consistency.System("none", mtbf_s=60.0, low=0.99999, high=1.0, source="")
    for setting in consistency.settings(impossible):
        assert setting.intervals_s == ()
        assert setting.best_share < impossible.low
