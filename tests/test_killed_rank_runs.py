"""Saves of two ranks that are wrong in one way each, and what a killed rank brings out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Measure, Measured, faulty, planned

from harness.durability import gate
from harness.experiments.faults.struck import worst_first, write_state
from harness.experiments.killed_rank.rows import KilledRankRow
from harness.run.plan import PlannedCase

pytestmark = [pytest.mark.slow, pytest.mark.patient, pytest.mark.timeout(900)]

FEW = 6
"""They hit the first and the last change of a directory, whoever dies, and two writes."""


@pytest.fixture(autouse=True)
def _needs_gate() -> None:
    obstacle = gate.available()
    if obstacle is not None:
        pytest.skip(obstacle)


@pytest.mark.parametrize(
    ("fault", "verdict", "fate"),
    [
        ("meets", "safe", "raised"),
        ("waits-for-ever", "safe", "hung"),
        ("dies-with-others", "safe", "died"),
        ("removes-older-first", "lost", "raised"),
        ("removes-all-first", "lost", "raised"),
        ("mixes-checkpoints", "silent", "raised"),
    ],
)
def test_each_mistake_of_two_ranks_has_its_verdict(
    measure: Measure, fault: str, verdict: str, fate: str
) -> None:
    row = killed_row(measure, killed(faulty(fault, experiment="killed_rank", world=2)))
    assert (row.killed_rank, row.not_reached) == (verdict, 0)
    assert (row.fates or {}).get(fate, 0) > 0
    # A hang is told apart from an error, and from the death of a process.
    others = {"raised", "hung", "died"} - {fate}
    assert not others & set(row.fates or {})


def test_a_torn_checkpoint_under_its_final_name_is_refused_and_can_be_looked_at(
    measure: Measure, tmp_path: Path
) -> None:
    measured = measure([killed(planned(experiment="killed_rank", world=2))])
    row = row_of(measured)
    assert row.killed_rank == "refused"
    # Nobody waits for the other one, so its save ends as if nothing had happened.
    assert set(row.fates or {}) == {"finished"}
    assert "No such file" in row.worst or "the file ends at byte" in row.worst
    case = measured.run.plan[0].case
    worst = worst_first(measured.run, case)[0]
    write_state(measured.run, case, worst.number, tmp_path / "state")
    assert sorted(os.listdir(tmp_path / "state" / "step-1")) == ["rank-0.bin", "rank-1.bin"]
    # The newer checkpoint lacks a file, or has a short one.
    newer = tmp_path / "state" / "step-2"
    sizes = [file.stat().st_size for file in newer.iterdir()]
    assert len(sizes) < 2 or len(set(sizes)) > 1


def test_a_loader_that_ends_its_process_costs_one_directory(measure: Measure) -> None:
    item = faulty("dies-of-torn-checkpoint", experiment="killed_rank", world=2)
    row = killed_row(measure, killed(item))
    assert (row.killed_rank, row.kills) == ("refused", FEW)
    ended = [kill for kill in row.struck if "ended its process" in kill["reason"]]
    assert ended
    assert {kill["verdict"] for kill in ended} == {"refused"}, "the older checkpoint is whole"


def test_a_save_that_does_not_come_back_undisturbed_fails_its_row(measure: Measure) -> None:
    run = measure([killed(faulty("zeros-elsewhere", experiment="killed_rank", world=2))])
    (row,) = run.rows
    assert row.status == "failed"
    assert "a save in which nobody is killed does not come back" in row.reason


def test_one_rank_alone_is_not_killed(measure: Measure) -> None:
    run = measure([killed(planned(experiment="killed_rank"))])
    (row,) = run.rows
    assert (row.status, row.reason) == (
        "unsupported",
        "one of two ranks is killed, and here are 1; ask for --world 2",
    )


def killed(item: PlannedCase) -> PlannedCase:
    """The case with few kills, whose ranks mpirun starts where it has several."""
    launcher = "mpirun" if item.case.world > 1 else "local"
    case = replace(item.case, settings={"kills": FEW}, launcher=launcher)
    return replace(item, case=case)


def killed_row(measure: Measure, item: PlannedCase) -> KilledRankRow:
    """The row of one case, once it has been measured."""
    return row_of(measure([item]))


def row_of(measured: Measured) -> KilledRankRow:
    """The row of a run of one case, whose measurement has not failed."""
    (row,) = measured.rows
    assert isinstance(row, KilledRankRow)
    assert (row.status, row.reason) == ("ok", "")
    return row
