"""Damages to a checkpoint: which file takes another one's place, and what becomes of links."""

from __future__ import annotations

import pytest

from harness.durability.trees import File, Folder, Link, Tree
from harness.experiments.faults.damage import Damaged, damages
from harness.experiments.faults.recorded_save import Part
from harness.experiments.faults.records import DANGLING, MISSING, SWAPPED, ZEROED


def files(**contents: str) -> Tree:
    """Return files; a name has "__" for a slash and "_" for a hyphen."""
    names = {name: name.replace("__", "/").replace("_", "-") for name in contents}
    return {names[name]: File(data.encode()) for name, data in contents.items()}


def of_kind(kind: str, before: Tree, after: Tree) -> list[Damaged]:
    """Return the damages of a kind to what a save made of one tree."""
    return [damage for damage in damages(after, before, []) if damage.kind == kind]


@pytest.mark.parametrize(
    ("older", "newer", "swapped"),
    [
        ({"step_1": "A"}, {"step_2": "B"}, ("step-2", "step-1")),
        (
            {"9__default__data": "A"},
            {"10__default__data": "B"},
            ("10/default/data", "9/default/data"),
        ),
        ({"ckpt_1.index": "A"}, {"ckpt_2.index": "B"}, ("ckpt-2.index", "ckpt-1.index")),
        (
            {"run__1__shard_0": "A", "run__1__shard_1": "B"},
            {"run__2__shard_0": "C", "run__2__shard_1": "D"},
            ("run/2/shard-1", "run/1/shard-1"),
        ),
    ],
    ids=["a method", "a store of folders", "a store of files", "shards"],
)
def test_a_file_is_swapped_with_the_one_of_the_older_checkpoint(
    older: dict[str, str], newer: dict[str, str], swapped: tuple[str, str]
) -> None:
    before = files(**older)
    after = {**before, **files(**newer), "more": Folder()}
    name, other = swapped
    words = f"{name} swapped with {other}"
    [found] = [each for each in of_kind(SWAPPED, before, after) if each.in_words == words]
    assert found.tree == {**after, name: before[other]}


def test_a_file_is_swapped_with_the_one_of_a_checkpoint_that_the_save_has_removed() -> None:
    before = files(step_1__shard_0="A", step_1__shard_1="B", newest="1")
    after = files(step_2__shard_0="C", step_2__shard_1="D", newest="2")
    words = "step-2/shard-1 swapped with step-1/shard-1, which the save has removed"
    [found] = [each for each in of_kind(SWAPPED, before, after) if each.in_words == words]
    assert found.tree == {**after, **files(step_2__shard_1="B")}


def test_a_file_that_the_save_has_overwritten_is_no_older_one_of_another() -> None:
    found = of_kind(SWAPPED, files(a_1="A", a_2="B"), files(a_1="C", a_2="D"))
    trees = [each.tree for each in found if each.in_words == "a-1 swapped with a-2"]
    assert trees == [files(a_1="D", a_2="D")]


def test_an_overwritten_file_is_swapped_with_what_it_was() -> None:
    [found] = of_kind(SWAPPED, files(newest="1"), files(newest="2"))
    assert found.in_words == "newest swapped with its bytes of before the save"
    assert found.tree == files(newest="1")


def test_a_damage_changes_something() -> None:
    """A page of zeros cannot be zeroed, and a file not be swapped with its like."""
    before = {"old": File(bytes(8))}
    after = {"old": File(bytes(8)), "new": File(bytes(8))}
    parts = [Part("weights", "new", 0, 8)]
    found = list(damages(after, before, parts))
    assert all(damaged.tree != after for damaged in found)
    assert not [damaged for damaged in found if damaged.kind == ZEROED]
    assert [damaged for damaged in found if damaged.kind == MISSING]


def test_a_link_that_a_save_moved_is_missing_and_leads_nowhere() -> None:
    kept = {"first": Link("step-1")}
    before = {**files(step_1="A"), **kept, "latest": Link("step-1")}
    after = {**files(step_1="A", step_2="B"), **kept, "latest": Link("step-2")}
    [missing] = [each for each in of_kind(MISSING, before, after) if "link" in each.in_words]
    assert missing.in_words == "the link latest missing"
    assert missing.tree == {name: after[name] for name in after if name != "latest"}
    [dangling] = of_kind(DANGLING, before, after)
    assert dangling.in_words == "the link latest dangling"
    assert dangling.tree == {**after, "latest": Link("step-2.gone")}
