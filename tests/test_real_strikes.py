"""Methods that are wrong in one way each, and the verdicts that errors and SIGTERMs bring out."""

from __future__ import annotations

import pytest
from conftest import Measure
from struck_saves import fault_row, struck_fault
from traced_saves import require_strace

from harness.durability import gate
from harness.experiments.faults.rows import FaultsRow

pytestmark = [pytest.mark.slow, pytest.mark.patient]


@pytest.fixture(autouse=True)
def _needs_gate() -> None:
    require_strace()
    obstacle = gate.available()
    if obstacle is not None:
        pytest.skip(obstacle)


def struck_row(measure: Measure, fault: str) -> FaultsRow:
    """Strike the saves of a double for real, and those of the replay at one instant."""
    return fault_row(measure([struck_fault(fault, instants=1)]), fault)


def states(row: FaultsRow, strike: str, verdict: str) -> list[str]:
    """Return the reasons of the states of a strike that have a verdict."""
    return [
        state["reason"]
        for state in row.struck
        if (state["strike"], state["verdict"]) == (strike, verdict)
    ]


def test_a_method_without_a_mistake_is_safe(measure: Measure) -> None:
    row = struck_row(measure, "renamed")
    assert (row.error, row.preemption) == ("safe", "safe")
    assert (row.next_fails, row.next_broken) == (0, 0)
    assert row.raised
    # Its unfinished file has a name of its own, which the next save does not remove.
    files = {name for state in row.struck for name in state["stray_files"]}
    assert files == {"step-2.tmp", "step-2.tmp/rank-0.bin"}
    assert (row.left_processes, row.left_memory_bytes) == (0, 0)


def test_a_swallowed_error_of_a_flush_is_silent(measure: Measure) -> None:
    row = struck_row(measure, "swallows-flush-errors")
    assert row.error == "silent"
    assert set(states(row, "error", "silent")) == {
        "the save reported success although a flush had failed"
    }


def test_an_ignored_short_write_is_silent(measure: Measure) -> None:
    row = struck_row(measure, "ignores-short-writes")
    silent = [
        state["in_words"]
        for state in row.struck
        if (state["strike"], state["verdict"]) == ("error", "silent")
    ]
    assert row.error == "silent"
    assert all(words.startswith("half of the bytes of write") for words in silent)


def test_a_method_that_cannot_save_again_fails_the_next_save(measure: Measure) -> None:
    row = struck_row(measure, "cannot-save-again")
    assert (row.next_fails, row.next_broken) == (row.raised, 0)
    assert row.next_fails
    said = {state["said"] for state in row.struck if state["strike"] == "next save"}
    assert "the save raised RuntimeError: a save has failed before" in said


def test_a_method_that_saves_a_stale_copy_does_not_pass(measure: Measure) -> None:
    row = struck_row(measure, "saves-stale-copy")
    assert (row.next_fails, row.next_broken) == (row.raised, row.raised)
    assert row.next_broken
    assert set(states(row, "next save", "silent")) == {
        "the save of step-3 reported success, and step-2 comes back"
    }


def test_a_next_save_that_hangs_has_failed(measure: Measure) -> None:
    row = struck_row(measure, "hangs-after-failed-rename")
    [hung] = [state for state in row.struck if "never ended" in state["said"]]
    assert hung["strike"] == "next save"
    assert hung["in_words"].startswith("the next save after EIO at rename number 1 and all later")
    assert row.next_fails == 1
    # The save before it is one state, and not two.
    assert len([state for state in row.struck if state["in_words"] in hung["in_words"]]) == 2


def test_a_save_that_a_sigterm_stops_is_silent(measure: Measure) -> None:
    row = struck_row(measure, "loses-save-at-sigterm")
    assert row.preemption == "silent"
    assert states(row, "preemption", "silent") == [
        "the save of step-2 reported success, and step-1 comes back"
    ]


def test_files_that_a_failed_save_leaves_are_counted(measure: Measure) -> None:
    row = struck_row(measure, "leaves-file-after-error")
    assert row.left_files == row.raised
    names = [state["stray_files"] for state in row.struck if state["strike"] == "next save"]
    assert sum("step-2.failed" in files for files in names) == row.raised


def test_processes_that_a_failed_save_leaves_are_counted(measure: Measure) -> None:
    row = struck_row(measure, "leaves-process-after-error")
    commands = {
        state["in_words"]: state["stray_processes"]
        for state in row.struck
        if state["strike"] == "next save"
    }
    after_eio = {words for words in commands if words.startswith("the next save after EIO")}
    with_process = {words for words in commands if commands[words] == ["sleep 60"]}
    assert row.left_processes == len(with_process) > 0
    assert with_process <= after_eio
    assert not any(commands[words] for words in set(commands) - with_process)


def test_memory_that_failed_saves_leave_is_counted(measure: Measure) -> None:
    row = struck_row(measure, "leaves-memory-after-error")
    assert row.left_memory_bytes
    assert row.left_processes == 0
