"""Methods that are wrong in one way each, and the verdicts that strikes bring out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from conftest import Measure, Measured
from struck_saves import fault_row, method_row, struck, struck_fault, without_real_strikes
from traced_saves import require_strace

pytestmark = [pytest.mark.slow, pytest.mark.patient]

FAULTS = (
    "renamed",
    "unflushed",
    "checked",
    "falls-back",
    "ignores-errors",
    "dies-of-empty-file",
    "dies-of-only-file",
    "removes-older",
    "overwrites-older",
    "mapped-save",
    "stray",
)
ENDED = "its load ended the process"
ENDS_AFTER_S = 20  # of a loader that hangs; a worker needs less to start beside other tests


@pytest.fixture(scope="module")
def run(measure: Measure) -> Measured:
    """Strike all of them in one run, because a loader that ends costs no other row."""
    require_strace()
    with without_real_strikes():
        return measure([struck("buffered"), *(struck_fault(fault) for fault in FAULTS)])


@pytest.mark.parametrize(
    ("fault", "kill", "power_loss", "damage"),
    [
        ("renamed", "safe", "safe", "silent"),
        ("unflushed", "safe", "silent", "silent"),
        ("checked", "safe", "safe", "refused"),
        ("falls-back", "safe", "safe", "safe"),
        ("ignores-errors", "safe", "safe", "silent"),
        ("dies-of-empty-file", "safe", "safe", "refused"),
        ("dies-of-only-file", "lost", "lost", "lost"),
        ("removes-older", "lost", "lost", "lost"),
        ("overwrites-older", "lost", "lost", "lost"),
        ("mapped-save", "", "", "silent"),
    ],
)
def test_each_mistake_has_its_verdicts(
    run: Measured, fault: str, kill: str, power_loss: str, damage: str
) -> None:
    row = fault_row(run, fault)
    assert (row.kill, row.power_loss, row.damage) == (kill, power_loss, damage)
    assert (row.not_seen == "") == (fault != "mapped-save")


def test_files_written_in_place_are_refused_after_a_kill(run: Measured) -> None:
    row = method_row(run, "buffered")
    assert row.kill == "refused"
    in_place = [state for state in row.struck if state["strike"] == "kill"]
    broken = [state for state in in_place if state["verdict"] == "refused"]
    assert [(state["in_words"], state["reason"].partition(":")[0]) for state in broken] == [
        (
            "killed between the creation of step-2 and the creation of step-2/rank-0.bin",
            "FileNotFoundError",
        ),
        (
            "killed between the creation of step-2/rank-0.bin "
            "and the write of 1,060,864 bytes to step-2/rank-0.bin",
            "EOFError",
        ),
        (
            "killed in the middle of the write of 528,384 bytes to step-2/rank-0.bin",
            "EOFError",
        ),
    ]


def test_the_worst_crash_is_the_rename_before_the_flush(run: Measured) -> None:
    row = fault_row(run, "unflushed")
    assert re.fullmatch(
        r"power lost between the rename of step-2\.tmp to step-2 and the flush of the directory "
        r"of the checkpoints: all bytes that were not flushed are zeros, and all names are there: "
        r"silent, wrong after the load: weights/.*",
        row.worst,
    )


def test_a_kill_leaves_the_older_checkpoint_until_the_rename(run: Measured) -> None:
    row = fault_row(run, "checked")
    kills = [state["got"] for state in row.struck if state["strike"] == "kill"]
    assert kills == sorted(kills), "first the older checkpoint comes back, then the newer one"
    assert set(kills) == {"step-1", "step-2"}


def test_a_loader_may_fall_back_by_itself(run: Measured) -> None:
    row = fault_row(run, "falls-back")
    damages = {state["got"] for state in row.struck if state["strike"] == "damage"}
    assert damages == {"step-1"}
    assert (row.worst, row.worst_damage) == ("", "")


def test_a_loader_that_leaves_the_state_as_it_was_is_silent(run: Measured) -> None:
    row = fault_row(run, "ignores-errors")
    damages = [state for state in row.struck if state["strike"] == "damage"]
    assert {state["verdict"] for state in damages} == {"silent"}
    assert all(state["reason"].startswith("wrong after the load: ") for state in damages)


def test_a_loader_that_ends_its_process_costs_one_state(run: Measured) -> None:
    row = fault_row(run, "dies-of-empty-file")
    ended = [state for state in row.struck if ENDED in state["reason"]]
    assert [(state["in_words"], state["verdict"]) for state in ended] == [
        ("step-2/rank-0.bin empty", "refused")
    ]
    assert ended[0]["reason"] == f"nothing comes back ({ENDED}: killed by SIGSEGV)"
    # It has the same states as the method that only refuses.
    assert numbers(row.struck) == numbers(fault_row(run, "checked").struck)


def test_a_loader_that_ends_its_process_with_nothing_left_has_lost_all(run: Measured) -> None:
    row = fault_row(run, "dies-of-only-file")
    ended = [state for state in row.struck if ENDED in state["reason"]]
    assert {state["verdict"] for state in ended} == {"lost"}
    assert {state["reason"] for state in ended} == {
        f"nothing comes back; no checkpoint has all of its files ({ENDED}: killed by SIGSEGV)"
    }
    assert "step-2/rank-0.bin empty" in {state["in_words"] for state in ended}
    # The others are as without the end of a process, and states with the same files count once.
    without = fault_row(run, "removes-older")
    assert numbers(row.struck) == numbers(without.struck)
    assert row.states == without.states


def test_a_mapped_save_says_why_no_crash_was_built(run: Measured) -> None:
    row = fault_row(run, "mapped-save")
    assert re.fullmatch(
        r"line \d+ of the log does not tell enough: step-2/rank-0.bin is mapped for writing",
        row.not_seen,
    )
    assert (row.kill_verdicts, row.power_loss_verdicts, row.steps) == (None, None, 0)
    assert row.worst == row.not_seen


def test_a_stray_file_has_no_influence(run: Measured) -> None:
    stray, without = fault_row(run, "stray"), method_row(run, "buffered")
    assert (stray.kill, stray.power_loss, stray.damage) == (
        without.kill,
        without.power_loss,
        without.damage,
    )
    assert stray.damage_verdicts == without.damage_verdicts


def test_a_loader_that_hangs_is_ended(measure: Measure) -> None:
    require_strace()
    item = struck_fault("hangs-on-empty-file", instants=1)
    with without_real_strikes():
        hung = measure([item, struck_fault("checked", instants=1)], timeout_s=ENDS_AFTER_S)
    row = fault_row(hung, "hangs-on-empty-file")
    [ended] = [state for state in row.struck if ENDED in state["reason"]]
    assert (ended["in_words"], ended["verdict"]) == ("step-2/rank-0.bin empty", "refused")
    assert f"{ENDS_AFTER_S} s" in ended["reason"]
    assert numbers(row.struck) == numbers(fault_row(hung, "checked").struck)


def numbers(struck_states: Sequence[dict[str, object]]) -> list[object]:
    return [state["number"] for state in struck_states]
