"""The headline on a model of the user's own, word by word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from built_rows import FAILED, row
from outside_folders import pickled
from stubs import command

from harness.analysis import summary
from harness.driver import catalog, outside, planning, suite
from harness.experiments.cost.rows import CostRow
from harness.experiments.cost.scaling import add_slowdowns
from harness.wire.case import OwnModel

MODEL = OwnModel(file="/home/me/train.py", function="make", digest="0123abcd", state_bytes=1000)
HINT = "ckptbench list methods --framework raw --how {} prints what to write in your script."
UNSAFE = {"durability": "never", "data_durability": "never"}


def own(method: str, durable_s: float = 1.0, stall: float = 0.5, **changes: Any) -> CostRow:
    return row(method, (durable_s,), stall, model=MODEL, **changes)


def test_one_method_that_is_certain_is_told_in_full() -> None:
    assert summary.meaning([own("one")]) == (
        "Your checkpoint is 1.1 kB. one stops training for 500 ms, and is on the disk after "
        f"1.00 s. After a crash of the machine each of these checkpoints is certain. {HINT}".format(
            "one"
        )
    )


def test_a_method_of_which_nothing_is_known_is_not_called_certain() -> None:
    unknown = own("unknown", 2.0, durability=None, data_durability=None)
    said = summary.meaning([own("certain"), unknown])
    assert "After a crash of the machine only what certain wrote is certain; of unknown" in said
    said = summary.meaning([own("certain"), own("usual", 3.0, **UNSAFE), unknown])
    assert (
        "only what certain wrote is certain; the files of usual have to be flushed by your script, "
        "and so has their folder (os.fsync); of unknown it is not known."
    ) in said


def test_one_method_that_is_never_certain_is_told_what_to_flush() -> None:
    assert summary.meaning([own("one", default=True, **UNSAFE)]) == (
        "Your checkpoint is 1.1 kB. one (the default) stops training for 500 ms, and is on the "
        "disk after 1.00 s. After a crash of the machine none of these checkpoints is certain, "
        "unless your script flushes the files and their folder (os.fsync) itself. "
        + HINT.format("one")
    )


def test_of_several_methods_the_default_the_soonest_and_the_shortest_stall_are_told() -> None:
    rows = [
        own("usual", 3.0, 3.0, default=True, **UNSAFE),
        own("certain", 2.0, 1.0),
        own("soon", 1.0, 0.9, **UNSAFE),
        own("short[depth=2]", 2.5, 0.1),
        own("slow", 9.0, 9.0),
        own("part", 0.1, 0.01, covers="weights", **UNSAFE),
    ]
    assert summary.meaning(rows) == (
        "Your checkpoint is 1.1 kB. "
        "usual (the default) stops training for 3.00 s, and is on the disk after 3.00 s; "
        "soon stops training for 900 ms, and is on the disk after 1.00 s; "
        "short[depth=2] stops training for 100 ms, and is on the disk after 2.50 s; "
        "certain stops training for 1.00 s, and is on the disk after 2.00 s. "
        "After a crash of the machine only what certain, short[depth=2] and slow wrote is certain; "
        "the files of the others have to be flushed by your script, and so has their folder "
        f"(os.fsync). {HINT}".format("certain")
    )


def test_a_method_that_covers_less_says_so_where_there_is_no_other() -> None:
    said = summary.meaning([own("part", covers="weights")])
    assert "part, which covers weights only, stops training for 500 ms, and is on" in said


def test_options_are_no_part_of_the_name_of_a_methods_lines() -> None:
    assert summary.meaning([own("one[depth=2]")]).endswith(HINT.format("one"))


def test_a_marked_row_is_neither_told_nor_counted_as_certain() -> None:
    marked = own("marked", 0.1, 0.1, marks=["Its numbers are in doubt."], default=True)
    said = summary.meaning([marked, own("good", **UNSAFE)])
    assert said == summary.meaning([own("good", **UNSAFE)])
    assert "marked" not in said


def test_an_unverified_row_is_not_told() -> None:
    said = summary.meaning([own("quick", 0.1, 0.1, verified=False), own("good")])
    assert said == summary.meaning([own("good")])


@pytest.mark.parametrize(
    "rows",
    [
        [own("one", verified=False)],
        [own("one", marks=["Its numbers are in doubt."])],
        [replace(FAILED, model=MODEL)],
    ],
)
def test_without_a_verified_method_there_is_no_headline(rows: list[CostRow]) -> None:
    assert summary.meaning(rows) == "No method gave a verified checkpoint without a mark here."


def test_a_failed_method_is_named_after_the_answer() -> None:
    said = summary.meaning([own("one"), FAILED])
    assert said.endswith(f"{HINT.format('one')} bad failed: see the reasons below.")


def test_nothing_is_said_of_a_crash_where_no_save_was_watched() -> None:
    said = summary.meaning([own("one", durability=None, data_durability=None)])
    assert "crash" not in said


def test_no_lines_are_promised_of_a_method_that_has_none() -> None:
    said = summary.meaning([own("theirs", has_lines=False)])
    assert "--how" not in said
    assert said.endswith("each of these checkpoints is certain.")


def test_of_several_worlds_the_largest_is_told_and_named() -> None:
    rows = [own("one"), own("two", 0.5, 0.1), own("one", 3.0, world=2), own("two", 2.0, world=2)]
    add_slowdowns(rows)
    assert summary.meaning(rows) == (
        "On 2 ranks, your checkpoint is 1.1 kB. "
        "two stops training for 500 ms, and is on the disk after 2.00 s; "
        "one stops training for 500 ms, and is on the disk after 3.00 s. "
        f"After a crash of the machine each of these checkpoints is certain. {HINT.format('two')} "
        "On 2 ranks two is durable first, in 2.00 s. As multiples of the time in the "
        "fewest ranks that the method was measured on: one 3.0; two 4.0."
    )


def test_a_failure_in_one_of_several_worlds_is_told() -> None:
    rows = [own("one"), own("one", 3.0, world=2), replace(FAILED, world=2)]
    add_slowdowns(rows)
    assert summary.meaning(rows).endswith(": one 3.0. bad failed: see the reasons below.")


def test_of_several_strategies_each_row_is_named_with_its_own() -> None:
    rows = [
        own("one", 3.0, 3.0, world=2, strategy="ddp", default=True, **UNSAFE),
        own("one", 2.0, 1.0, world=2, strategy="fsdp", default=True, **UNSAFE),
        own("two", 1.0, 0.5, world=2, strategy="ddp"),
        own("two", 4.0, 2.0, world=2, strategy="fsdp"),
    ]
    assert summary.meaning(rows) == (
        "Your checkpoint is 1.1 kB. "
        "one with ddp (the default) stops training for 3.00 s, and is on the disk after 3.00 s; "
        "one with fsdp (the default) stops training for 1.00 s, and is on the disk after 2.00 s; "
        "two with ddp stops training for 500 ms, and is on the disk after 1.00 s. "
        "After a crash of the machine only what two with ddp and two with fsdp wrote is certain; "
        "the files of the others have to be flushed by your script, and so has their folder "
        f"(os.fsync). {HINT.format('two')}"
    )


def test_one_strategy_is_no_part_of_a_name() -> None:
    rows = [own("one"), own("one", world=2, strategy="ddp")]
    add_slowdowns(rows)
    said = summary.meaning(rows)
    assert said.startswith("On 2 ranks, your checkpoint is 1.1 kB. one stops training")


def test_a_world_without_a_verified_method_is_not_told() -> None:
    said = summary.meaning([own("one"), replace(FAILED, model=MODEL, world=2)])
    assert said.startswith("On 1 rank, your checkpoint is 1.1 kB. one stops training for 500 ms")
    no_other = "No method gave a verified checkpoint in several worlds."
    assert said.endswith(f"{no_other} bad failed: see the reasons below.")


def test_lines_are_promised_of_the_methods_that_have_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_named", [])
    outside.choose([pickled(tmp_path)])
    entries = catalog.frameworks()
    raw = entries["raw"]
    methods = ["torch-save", "deepfreeze", "direct", "one-pickle"]
    planned = planning.plan(suite.load("smoke"), [raw, entries["pytorch"]], methods=methods)
    promised = {(item.case.framework, item.case.method): item.has_lines for item in planned}
    assert promised == {
        ("raw", "direct"): False,
        ("raw", "deepfreeze"): False,
        ("raw", "one-pickle"): False,
        ("pytorch", "torch-save"): True,
        ("pytorch", "deepfreeze"): True,
    }
    for (framework, method), has_lines in promised.items():
        if has_lines:
            words = ("list", "methods", "--framework", framework, "--how", method)
            assert f"# {method} in {framework}: save" in command(*words).output
