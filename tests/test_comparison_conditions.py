"""Conditions: metrics that are not compared, because the two sides measured them otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compared_runs import Make, calibration, changed, compared, cost, item, maker, metrics, settled

from harness.analysis import comparison
from harness.cli import compare
from harness.experiments.cost.rows import CostRow
from harness.run.errors import IncomparableError


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path / "results")


def test_loads_from_elsewhere_are_not_compared(make: Make) -> None:
    plan = [item()]
    warm = changed(cost(plan[0]), "load", cache="warm", load_ns=1000)
    found = compared(make, cost(plan[0]), warm, plan)
    assert "load" not in metrics(found)
    assert dict(found.rows[0].left_out) == {"load": "the loads were cold and are warm"}
    assert list(found.remarks) == [
        "raw buffered: load is not compared, because the loads were cold and are warm"
    ]


def test_a_metric_in_another_unit_is_not_compared(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An experiment may tell a metric by another column and forget the condition."""
    plan = [item()]
    columns = dict(comparison.metrics.columns_of(CostRow))
    for name in ("load_s", "read_efficiency"):
        declared = replace(columns[name].compared, conditions=())
        columns[name] = replace(columns[name], compared=declared)
    monkeypatch.setattr(comparison.metrics, "columns_of", lambda row_class: columns)
    warm = changed(cost(plan[0]), "load", cache="warm")
    found = compared(make, cost(plan[0]), warm, plan)
    assert dict(found.rows[0].left_out) == {
        "load": "it was measured in ceilings and is measured in s"
    }


@pytest.mark.parametrize(
    ("changes", "left_out", "is_hollow"),
    [
        ({}, [], False),
        ({"write_depth": 7}, ["durable"], False),
        ({"read_block_bytes": 7}, ["load"], False),
        ({"write_depth": 7, "read_depth": 7}, ["durable", "load"], True),
    ],
)
def test_times_in_ceilings_of_other_requests_are_not_compared(
    make: Make, changes: dict[str, int], left_out: list[str], is_hollow: bool
) -> None:
    plan = [item()]
    base = make(plan, [calibration(), *cost(plan[0])])
    head = make(plan, [calibration(**changes), *cost(plan[0], 1.5)])
    found = comparison.of_runs(base, head)
    assert metrics(found).keys() == {"stall", "durable", "load"} - set(left_out)
    assert list(found.rows[0].left_out) == left_out
    assert found.is_hollow is is_hollow
    if left_out:
        (remark,) = found.remarks
        names, _, why = remark.partition(": ")
        assert names == " and ".join(left_out)
        assert why.startswith("not compared, because the ceilings of the two sides were made of ")
    else:
        assert not found.remarks


@pytest.mark.parametrize(("kind", "metric"), [("save", "durable"), ("load", "load")])
def test_times_in_ceilings_of_older_versions_are_not_compared(
    make: Make, kind: str, metric: str
) -> None:
    plan = [item()]
    older = cost(plan[0])
    newer = settled(cost(plan[0], 1.5), kind)
    found = compared(make, older, newer, plan)
    assert list(found.rows[0].left_out) == [metric]
    assert metric not in metrics(found)
    assert list(found.remarks) == [
        f"{metric}: not compared, because the ceilings of one side were taken without memory "
        "having been backed before, as older versions did. Measure that side anew"
    ]
    assert not compared(make, newer, newer, plan).remarks


def test_a_baseline_of_an_older_version_is_refused_before_anything_is_measured(
    make: Make, tmp_path: Path
) -> None:
    plan = [item()]
    older = cost(plan[0])
    compare._require_settled(make(plan, settled(older, "save", "load")), tmp_path)
    for baseline in (make(plan, older), make(plan, settled(older, "save"))):
        with pytest.raises(IncomparableError, match="by an older version") as refused:
            compare._require_settled(baseline, tmp_path)
        assert str(refused.value).endswith(f"remove {tmp_path} to have a new one")


def test_the_ceilings_of_loads_out_of_a_cache_need_not_be_of_this_version(make: Make) -> None:
    """They are compared in seconds, so that no ceiling is in their unit."""
    plan = [item()]
    found = changed(settled(cost(plan[0]), "save"), "load", cache="warm")
    assert comparison.has_settled_ceilings(make(plan, found))
