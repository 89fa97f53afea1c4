"""Saves of two ranks that are wrong in one way each, and what a killed rank brings out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import Measure, faulty, planned

from harness.durability import gate
from harness.experiments.killed_rank.rows import KilledRankRow
from harness.run.plan import PlannedCase

pytestmark = [pytest.mark.slow, pytest.mark.patient]

KILLS = 7


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
    assert (row.killed_rank, row.kills) == (verdict, KILLS)
    assert (row.fates or {}).get(fate, 0) > 0
    # A hang is told apart from an error, and from the death of a process.
    others = {"raised", "hung", "died"} - {fate}
    assert not others & set(row.fates or {})


def test_a_torn_checkpoint_under_its_final_name_is_refused(measure: Measure) -> None:
    row = killed_row(measure, killed(planned(experiment="killed_rank", world=2)))
    assert row.killed_rank == "refused"
    # Nobody waits for the other one, so its save ends as if nothing had happened.
    assert set(row.fates or {}) == {"finished"}
    assert "No such file" in row.worst or "unexpected end" in row.worst


def test_a_loader_that_ends_its_process_costs_one_directory(measure: Measure) -> None:
    item = faulty("dies-of-torn-checkpoint", experiment="killed_rank", world=2)
    row = killed_row(measure, killed(item))
    assert (row.killed_rank, row.kills) == ("refused", KILLS)
    assert any("ended its process" in kill["reason"] for kill in row.struck)


def test_a_save_that_does_not_come_back_undisturbed_fails_its_row(measure: Measure) -> None:
    run = measure([killed(faulty("zeros-elsewhere", experiment="killed_rank", world=2))])
    (row,) = run.rows
    assert row.status == "failed"
    assert "a save in which nobody is killed does not come back" in row.reason


def test_one_rank_has_no_other(measure: Measure) -> None:
    run = measure([killed(planned(experiment="killed_rank"))])
    (row,) = run.rows
    assert (row.status, row.reason) == (
        "unsupported",
        "one rank has no other; ask for more with --world 2",
    )


def killed(item: PlannedCase) -> PlannedCase:
    """The case with few kills, whose ranks mpirun starts where it has several."""
    launcher = "mpirun" if item.case.world > 1 else "local"
    case = replace(item.case, settings={"kills": KILLS}, launcher=launcher)
    return replace(item, case=case)


def killed_row(measure: Measure, item: PlannedCase) -> KilledRankRow:
    """The row of a case, whose measurement has not failed."""
    (row,) = measure([item]).rows
    assert isinstance(row, KilledRankRow)
    assert (row.status, row.reason) == ("ok", "")
    return row
