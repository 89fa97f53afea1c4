"""Saves of stores are struck, and their own restore decides about what is left."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from conftest import Measure, Measured, planned

from harness.experiments.faults.rows import FaultsRow
from harness.run.plan import PlannedCase

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def struck(method: str) -> PlannedCase:
    """A store of the raw adapter, whose save is struck at all of its few instants."""
    item = planned(method, experiment="faults", samples=1, warmups=0)
    return replace(item, case=replace(item.case, settings={"instants": 60}))


@pytest.fixture(scope="module")
def run(measure: Measure) -> Measured:
    return measure([struck("deepfreeze-store"), struck("deepfreeze-store-one")])


def row_of(run: Measured, method: str) -> FaultsRow:
    row = run.row(method)
    assert isinstance(row, FaultsRow)
    assert (row.status, row.reason, row.not_seen) == ("ok", "", "")
    return row


@pytest.mark.parametrize("method", ["deepfreeze-store", "deepfreeze-store-one"])
def test_a_store_that_removes_last_is_safe_after_every_crash(run: Measured, method: str) -> None:
    row = row_of(run, method)
    assert (row.kill, row.power_loss) == ("safe", "safe")
    # An early kill leaves the first checkpoint, and a late one the second.
    kills = [state for state in row.struck if state["strike"] == "kill"]
    assert {state["got"] for state in kills} == {"step-1", "step-2"}


def test_a_store_that_keeps_two_goes_back_to_the_older_after_damage(run: Measured) -> None:
    row = row_of(run, "deepfreeze-store")
    damages = [state for state in row.struck if state["strike"] == "damage"]
    assert {(state["verdict"], state["got"]) for state in damages} == {("safe", "step-1")}


def test_a_store_that_keeps_one_has_nothing_to_go_back_to(run: Measured) -> None:
    row = row_of(run, "deepfreeze-store-one")
    damages = [state for state in row.struck if state["strike"] == "damage"]
    assert {state["verdict"] for state in damages} == {"lost"}
    assert all("step-" not in state["got"] for state in damages)
    [missing] = [state for state in damages if state["in_words"].endswith("missing")]
    assert missing["reason"].endswith("no checkpoint has all of its files")
