"""Saves of stores are struck, and their own restore decides about what is left."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from conftest import Measure, Measured, planned

from harness import experiments
from harness.durability.trees import File, Folder, Link, Tree
from harness.experiments.faults.damage import both_checkpoints
from harness.experiments.faults.rows import FaultsRow
from harness.run.plan import PlannedCase

traced = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def tree(**files: str) -> Tree:
    """Return a directory with these files, each under its name with a dot for an underscore."""
    return {name.replace("_", "."): File(data.encode()) for name, data in files.items()}


@pytest.mark.parametrize(
    ("before", "after", "older", "newer"),
    [
        (
            tree(step_1="A"),
            {**tree(step_1="A", step_2="B"), "more": Folder()},
            {"step.1": b"A"},
            {"step.2": b"B"},
        ),
        (
            {**tree(step_1="A", newest="1"), "latest": Link("step.1")},
            {**tree(step_2="B", newest="2"), "latest": Link("step.2")},
            {"step.1": b"A"},
            {"step.2": b"B"},
        ),
        (
            tree(weights="AAA", epoch="1"),
            tree(weights="BBB", epoch="2"),
            {"weights": b"AAA"},
            {"weights": b"BBB"},
        ),
    ],
    ids=["keeps both", "removes the older", "overwrites"],
)
def test_the_files_of_a_checkpoint_are_not_those_of_its_store(
    before: Tree, after: Tree, older: dict[str, bytes], newer: dict[str, bytes]
) -> None:
    assert both_checkpoints(before, after) == [older, newer]


def test_what_a_method_leaves_beside_its_checkpoints_is_no_file_of_theirs() -> None:
    """It was written again with the same bytes, so it does not look changed."""
    before = tree(**{"step-1": "AAA", "left.tmp": "x"})
    after = tree(**{"step-1": "AAA", "step-2": "BBB", "left.tmp": "x"})
    found = both_checkpoints(before, after, names=("step-1", "step-2"))
    assert found == [{"step-1": b"AAA"}, {"step-2": b"BBB"}]


def struck(method: str) -> PlannedCase:
    """A store of the raw adapter, whose save is struck at all of its few instants."""
    item = planned(method, experiment="faults", samples=1, warmups=0)
    settings = experiments.experiment("faults").settings(item.case)
    return replace(item, case=replace(item.case, settings=settings))


@pytest.fixture(scope="module")
def run(measure: Measure) -> Measured:
    return measure([struck("deepfreeze-store"), struck("deepfreeze-store-one")])


def row_of(run: Measured, method: str) -> FaultsRow:
    row = run.row(method)
    assert isinstance(row, FaultsRow)
    assert (row.status, row.reason, row.not_seen) == ("ok", "", "")
    return row


@pytest.mark.slow
@pytest.mark.patient
@traced
@pytest.mark.parametrize("method", ["deepfreeze-store", "deepfreeze-store-one"])
def test_a_store_that_removes_last_is_safe_after_every_crash(run: Measured, method: str) -> None:
    row = row_of(run, method)
    assert (row.kill, row.power_loss) == ("safe", "safe")
    # An early kill leaves the first checkpoint, and a late one the second.
    kills = [state for state in row.struck if state["strike"] == "kill"]
    assert {state["got"] for state in kills} == {"step-1", "step-2"}


@pytest.mark.slow
@pytest.mark.patient
@traced
def test_a_store_that_keeps_two_goes_back_to_the_older_after_damage(run: Measured) -> None:
    row = row_of(run, "deepfreeze-store")
    damages = [state for state in row.struck if state["strike"] == "damage"]
    assert {(state["verdict"], state["got"]) for state in damages} == {("safe", "step-1")}


@pytest.mark.slow
@pytest.mark.patient
@traced
def test_a_store_that_keeps_one_has_nothing_to_go_back_to(run: Measured) -> None:
    row = row_of(run, "deepfreeze-store-one")
    found = [state for state in row.struck if state["strike"] == "damage"]
    # A file of the removed checkpoint brings that back.
    swapped = [state for state in found if "swapped with step-" in state["in_words"]]
    assert [(state["verdict"], state["got"]) for state in swapped] == [("safe", "step-1")]
    damages = [state for state in found if state not in swapped]
    assert {state["verdict"] for state in damages} == {"lost"}
    assert all("step-" not in state["got"] for state in damages)
    [missing] = [state for state in damages if state["in_words"].endswith("missing")]
    assert missing["reason"].endswith("no checkpoint has all of its files")
