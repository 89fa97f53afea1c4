"""Runs of the experiments `recovery` and `drill` with real ranks that are really killed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import Measure, Measured, faulty, planned

from harness.experiments.drill.rows import DrillRow
from harness.experiments.recovery.plans import KILLS
from harness.experiments.recovery.rows import PARTS, RecoveryRow
from harness.run.plan import PlannedCase

pytestmark = [pytest.mark.slow, pytest.mark.patient]

RANKS = 3


def of_ranks(item: PlannedCase, experiment: str, **settings: str) -> PlannedCase:
    case = replace(
        item.case, experiment=experiment, world=RANKS, launcher="mpirun", settings=settings
    )
    return replace(item, case=case, samples=1, warmups=0)


def killed(way: str, mirror: str = "no", item: PlannedCase | None = None) -> PlannedCase:
    return of_ranks(item or planned("buffered"), "recovery", way=way, mirror=mirror)


def ways_of(run: Measured) -> dict[str, RecoveryRow]:
    rows = [row for row in run.rows if isinstance(row, RecoveryRow)]
    assert [(row.status, row.reason) for row in rows] == [("ok", "")] * len(run.rows)
    return {f"{row.way} {row.mirror}": row for row in rows}


def test_every_way_comes_back_with_the_bits_that_it_must_have(measure: Measure) -> None:
    wanted = {
        ("restart", "no"): "all ranks",
        ("rollback-file", "no"): "all ranks",
        ("rollback-memory", "yes"): "all ranks",
        ("peer-spare", "yes"): "all ranks",
        ("peer-spare", "no"): "neither",
        ("shrink", "no"): "fewer ranks",
        ("shrink-drop", "no"): "neither",
    }
    rows = ways_of(measure([killed(way, mirror) for way, mirror in wanted]))
    bits = {key: rows[f"{key[0]} {key[1] == 'yes'}"].same_as for key in wanted}
    assert bits == wanted
    for row in rows.values():
        assert (row.kills, row.came_back) == (KILLS, KILLS)
        for kill in row.each_kill:
            parts_s = [kill[f"{name}_s"] or 0.0 for name in PARTS]
            assert sum(parts_s) == pytest.approx(kill["back_s"], abs=1e-6)
            assert min(parts_s) >= 0.0
    assert rows["shrink False"].steps_recomputed == 0
    assert rows["restart False"].steps_recomputed == 2
    assert rows["restart False"].times_faster is None, "buffered is not the default method"


def test_a_spawned_process_takes_over_bit_by_bit(measure: Measure) -> None:
    (row,) = ways_of(measure([killed("peer-spawn", "yes")])).values()
    assert (row.came_back, row.same_as) == (KILLS, "all ranks"), row.not_back
    assert row.restart is not None, "a new process starts and imports"
    assert set(row.ranks_after) == {RANKS}


def test_a_restart_from_a_method_that_loses_a_leaf_has_nobodys_bits(measure: Measure) -> None:
    run = measure([killed("restart", item=faulty("one-leaf-missing"))])
    (row,) = ways_of(run).values()
    assert (row.came_back, row.same_as) == (KILLS, "neither")
    assert row.marks == [
        f"{KILLS} of {KILLS} kills left nobody's bits, and '{row.way_in_words}' must leave the "
        "bits of all ranks"
    ]


def test_a_method_that_raises_fails_the_row(measure: Measure) -> None:
    (row,) = measure([killed("rollback-file", item=faulty("raises"))]).rows
    assert row.status == "failed"
    assert "RuntimeError" in row.reason


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        (1, "one rank has nobody who could survive it or take over"),
        (13, "a step has 12 micro-batches, so more ranks have nothing to compute"),
    ],
)
def test_too_few_ranks_and_too_many_are_refused(measure: Measure, world: int, reason: str) -> None:
    harder = of_ranks(planned("buffered"), "drill", way="shrink", failure="rank-0")
    launcher = "local" if world == 1 else "mpirun"
    cases = [
        replace(item, case=replace(item.case, world=world, launcher=launcher))
        for item in (killed("shrink"), harder)
    ]
    rows = measure(cases).rows
    assert [(row.status, row.reason) for row in rows] == [("unsupported", reason)] * 2


def test_training_survives_harder_failures(measure: Measure) -> None:
    pairs = [
        ("rollback-file", "in-save"),
        ("rollback-memory", "apart"),
        ("peer-spare", "rank-0"),
        ("shrink", "stopped"),
        ("shrink", "down-to-one"),
        ("shrink-drop", "apart"),
        ("rollback-file", "launcher"),
        ("shrink", "launcher"),
    ]
    cases = [of_ranks(planned("buffered"), "drill", way=way, failure=fails) for way, fails in pairs]
    rows = measure(cases).rows
    assert {(row.way, row.failure): (row.status, row.verdict) for row in rows} == dict.fromkeys(
        pairs, ("ok", "passed")
    )


@pytest.mark.parametrize("failure", ["rank-0", "in-repair", "stopped"])
def test_spawned_processes_survive_harder_failures(measure: Measure, failure: str) -> None:
    item = of_ranks(planned("buffered"), "drill", way="peer-spawn", failure=failure)
    item = replace(item, case=replace(item.case, world=4))
    (row,) = measure([item]).rows
    assert (row.status, row.verdict) == ("ok", "passed"), row.reason


@pytest.mark.parametrize("way", ["peer-spare", "rollback-memory", "shrink"])
def test_a_spare_whose_restore_is_struck_still_gets_what_the_dead_rank_alone_had(
    measure: Measure, way: str
) -> None:
    item = of_ranks(planned("buffered"), "drill", way=way, failure="in-restore")
    item = replace(item, case=replace(item.case, world=4))
    (row,) = measure([item]).rows
    assert (row.status, row.verdict) == ("ok", "passed"), row.reason


def test_a_save_that_fails_in_the_background_fails_the_row(measure: Measure) -> None:
    (row,) = measure([killed("restart", item=faulty("background-error"))]).rows
    assert (row.status, row.phase) == ("failed", "train")
    assert "background" in row.reason


def test_a_failure_that_a_way_cannot_have_is_refused(measure: Measure) -> None:
    (row,) = measure([of_ranks(planned("buffered"), "drill", way="shrink", failure="in-save")]).rows
    assert isinstance(row, DrillRow)
    assert (row.status, row.reason) == ("unsupported", "this way saves no checkpoints")
