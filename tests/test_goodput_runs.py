"""A run of the experiment `goodput` with real ranks that are really killed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import Measure, faulty, planned

from harness.experiments.goodput import KILLS
from harness.experiments.goodput.rows import GoodputRow
from harness.run.plan import PlannedCase

pytestmark = [pytest.mark.slow, pytest.mark.patient, pytest.mark.timeout(1800)]


def killed(item: PlannedCase) -> PlannedCase:
    case = replace(
        item.case,
        experiment="goodput",
        world=2,
        launcher="mpirun",
        settings={"mtbf": 3, "interval": "advised"},
    )
    return replace(item, case=case, samples=1, warmups=0)


def test_a_prediction_is_judged_by_real_kills(measure: Measure) -> None:
    run = measure([killed(planned("buffered"))])
    (row,) = run.rows
    assert isinstance(row, GoodputRow)
    assert (row.status, row.reason) == ("ok", "")
    assert row.kills == KILLS
    assert row.lost is not None
    parts = (row.checkpoints, row.recompute, row.detect, row.restart, row.restore)
    assert sum(part or 0.0 for part in parts) == pytest.approx(row.lost, abs=0.001)
    # The job fails every three restarts, so it loses about a third of its time at least.
    assert 0.2 < row.lost < 0.95
    assert row.predicted is not None
    assert row.ratio is not None
    assert 0.5 < row.ratio.value < 2.0
    assert row.steps_done is not None
    assert row.steps_kept is not None
    assert row.steps_done > row.steps_kept > 0
    stored = [record.kind for record in run.run.records]
    assert stored.index("schedule") < stored.index("prediction") < stored.index("goodput")


def test_a_method_that_raises_fails_the_row(measure: Measure) -> None:
    (row,) = measure([killed(faulty("raises"))]).rows
    assert row.status == "failed"
    assert "RuntimeError" in row.reason
