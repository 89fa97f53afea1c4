"""Real kills of a save: which ones are ordered, what they leave, and what a row says of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Measure, planned
from drawing import stored
from struck_records import KNOWN, struck, tried
from struck_saves import fault_row, require_gate, struck_fault
from traced_saves import require_strace

from harness.analysis import summary
from harness.analysis.columns import cell
from harness.analysis.row import Naming
from harness.experiments.faults.kill_order import Counted, Kill, chosen, instead
from harness.experiments.faults.records import ErrorsRecord, KilledRecord, KillsRecord
from harness.experiments.faults.rows import FaultsRow
from harness.experiments.faults.sentences import claims, details, meaning
from harness.wire.records import Record

ITEM = planned("buffered", experiment="faults")
CASE = ITEM.case.id
WHOLE = [struck("kill", 0, "safe"), struck("power loss", 0, "safe"), struck("error", None, "safe")]

# The choice


def changes_of(kills: list[Kill]) -> list[int]:
    return [kill.change for kill in kills]


def test_kills_come_first_last_and_around_every_rename() -> None:
    counted = Counted(changes=50, renames=[20, 50], save_ns=10**9)
    kills = chosen(counted, 5, "seed", is_seen=True)
    assert set(changes_of(kills)) > {1, 20, 21, 50}
    assert changes_of(kills) == sorted(changes_of(kills))
    assert len(kills) == 5
    assert all(kill.is_predicted and not kill.moment for kill in kills)


def test_of_many_renames_some_have_their_kill_and_a_change_by_chance_too() -> None:
    renames = list(range(10, 400, 10))
    counted = Counted(changes=500, renames=renames, save_ns=10**9)
    changes = changes_of(chosen(counted, 8, "seed", is_seen=True))
    telling = {1, 500, *renames, *(number + 1 for number in renames)}
    assert len(changes) == 8
    assert {1, 500} < set(changes)
    assert len(set(changes) - telling) == 1
    assert max(changes[1:-1]) - min(changes[1:-1]) > 200


def test_a_save_with_fewer_changes_is_killed_before_each_of_them_again() -> None:
    counted = Counted(changes=3, renames=[], save_ns=10**9)
    kills = chosen(counted, 8, "seed", is_seen=True)
    assert changes_of(kills)[:3] == [1, 2, 3]
    assert sorted(changes_of(kills)[3:6]) == [1, 2, 3]
    assert len(kills) == len({kill.name for kill in kills}) == len({k.in_words for k in kills}) == 8
    assert all(kill.is_predicted for kill in kills)
    assert chosen(Counted(0, [], 10**9), 8, "seed", is_seen=True) == []


def test_a_save_that_a_log_does_not_show_is_also_killed_at_random_moments() -> None:
    counted = Counted(changes=3, renames=[], save_ns=10**6)
    kills = chosen(counted, 8, "seed", is_seen=False)
    assert changes_of(kills) == [1, 2, 3, 0, 0, 0, 0, 0]
    assert [kill.moment for kill in kills] == [0, 0, 0, 1, 2, 3, 4, 5]
    assert len({kill.after_ns for kill in kills[3:]}) == 5
    assert all(0 < kill.after_ns < 10**6 for kill in kills[3:])
    assert not any(kill.is_predicted for kill in kills)
    assert len({kill.name for kill in kills}) == 8


# Real ones


@pytest.mark.slow
def test_a_save_through_a_mapping_is_really_killed_and_judged(measure: Measure) -> None:
    require_strace()
    require_gate()
    row = fault_row(measure([struck_fault("mapped-save", instants=1, kills=8)]), "mapped-save")
    assert row.not_seen.endswith("step-2/rank-0.bin is mapped for writing")
    assert row.real_kills == 8
    assert row.not_reached == 0
    assert row.as_predicted is None
    assert sum((row.kill_verdicts or {}).values()) == 8
    assert row.power_loss_verdicts is None
    # A kill between the two creations leaves a directory without its file. Later ones may leave
    # zeros in a file of its whole length, which loads without an error.
    assert row.kill in ("refused", "silent")
    assert row.worst.startswith("killed ")
    (line,) = details([row], Naming.among([row]), is_short=True)
    assert "power losses were not seen, and its kills are real ones" in line
    assert "safe" not in meaning([row], Naming.among([row]))


@pytest.mark.slow
def test_every_kill_is_reached_where_the_recorded_save_makes_other_calls(measure: Measure) -> None:
    require_strace()
    require_gate()
    row = fault_row(measure([struck_fault("calls-vary", instants=1, kills=8)]), "calls-vary")
    # Its first save makes five changes, of which two fail. The recorded one is its second save.
    assert (row.real_kills, row.as_predicted, row.not_reached) == (8, 8, 0)


def test_a_kill_that_came_too_late_is_ordered_before_a_change_that_others_reach() -> None:
    ordered = [Kill(1), Kill(2), Kill(3), Kill(1, again=1)]
    kills = instead(ordered, [Kill(1), Kill(2), Kill(1, again=1)], 3)
    assert sorted(kill.change for kill in kills) in ([1, 1, 2], [1, 2, 2])
    names = {kill.name for kill in [*ordered, *kills]}
    assert len(names) == 7
    assert instead(ordered, [], 3) == []


@pytest.mark.slow
def test_a_save_that_makes_fewer_changes_than_were_counted_has_as_many_kills(
    measure: Measure,
) -> None:
    require_strace()
    require_gate()
    row = fault_row(
        measure([struck_fault("calls-by-folder", instants=1, kills=8)]), "calls-by-folder"
    )
    assert (row.real_kills, row.as_predicted, row.not_reached) == (8, 8, 0)


@pytest.mark.slow
def test_a_save_that_crashes_by_itself_is_no_kill(measure: Measure) -> None:
    require_strace()
    require_gate()
    case = struck_fault("crashes-where-killed", instants=1, kills=8)
    row = fault_row(measure([case]), "crashes-where-killed")
    # It crashes behind its first change, so only the kill before that one is a kill.
    assert (row.real_kills, row.as_predicted, row.not_reached) == (1, 1, 7)
    assert row.not_struck == (
        "1 of 8 saves were killed: one that was to be killed before change 2 "
        "ended by itself with SIGABRT"
    )
    lines = details([row], Naming.among([row]), is_short=True)
    assert sum("saves were killed" in line for line in lines) == 1


def test_a_save_that_raises_by_itself_is_no_matter_of_errors(measure: Measure) -> None:
    require_strace()
    require_gate()
    row = measure([struck_fault("never-beside-others", instants=1)]).rows[0]
    assert (row.status, row.reason) == (
        "failed",
        "BrokenSave: a save that no error struck raised "
        "FileExistsError: there are checkpoints already",
    )


@pytest.mark.slow
def test_the_saves_of_all_processes_make_the_same_calls(measure: Measure) -> None:
    """Chainer's HDF5 files have their parameters in the order of a set, so writes differ by it."""
    require_strace()
    require_gate()
    case = struck_fault("calls-by-hash", instants=1, kills=8)
    rows = [fault_row(measure([case]), "calls-by-hash") for _ in range(2)]
    assert rows[0].steps == rows[1].steps
    assert [(row.as_predicted, row.not_reached) for row in rows] == [(8, 0), (8, 0)]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_process_lets_its_tracer_attach_before_it_starts_it(tmp_path: Path) -> None:
    """Yama refuses a child that wants to trace its parent, unless the parent allows it."""
    program = (
        "from pathlib import Path\n"
        "from harness.experiments.faults.kills import _traced\n"
        f"with _traced(Path({str(tmp_path / 'inner')!r})):\n"
        "    pass\n"
    )
    log = tmp_path / "outer"
    tracer = ["strace", "-f", "-qq", "-e", "trace=prctl,execve", "-o", str(log)]
    subprocess.run([*tracer, sys.executable, "-c", program], cwd=ROOT, check=True)
    lines = log.read_text().splitlines()
    allowed = next(n for n, line in enumerate(lines) if "PR_SET_PTRACER_ANY" in line)
    started = next(n for n, line in enumerate(lines) if re.search(r'execve\(.*"-p"', line))
    assert allowed < started


# What a row says


def row_of(tmp_path: Path, *ended: Record, states: list[dict[str, Any]] | None = None) -> FaultsRow:
    run = stored(tmp_path, [(ITEM, [*ended, *tried(ITEM, WHOLE if states is None else states)])])
    (row,) = run.rows
    assert isinstance(row, FaultsRow)
    return row


def killed(change: int, difference: str = "") -> KilledRecord:
    return KilledRecord(kind="killed", case=CASE, **KNOWN, change=change, difference=difference)


def kills(count: int, not_done: str = "") -> KillsRecord:
    return KillsRecord(kind="kills", case=CASE, **KNOWN, kills=count, not_done=not_done)


def errors(hit: int, not_done: str = "") -> ErrorsRecord:
    return ErrorsRecord(kind="errors", case=CASE, **KNOWN, hit=hit, not_done=not_done)


def lines_of(row: FaultsRow) -> list[str]:
    return summary.details([row], is_short=True)


def test_kills_that_came_too_late_are_told(tmp_path: Path) -> None:
    row = row_of(tmp_path, *(killed(change) for change in range(1, 8)), kills(8))
    assert cell(row, "as_predicted") == "7/7 of 8"
    (line,) = lines_of(row)
    assert "7 of 8 saves were killed, because the others ended before their kill" in line


def test_a_kill_that_left_other_files_marks_the_row(tmp_path: Path) -> None:
    row = row_of(tmp_path, killed(1), killed(2, "step-2/a is missing"), kills(2))
    assert cell(row, "as_predicted") == "1/2"
    (mark,) = row.marks
    assert "before change 2 is not as its calls predict: step-2/a is missing" in mark
    run = stored(tmp_path / "other", [(ITEM, [killed(2, "x"), kills(1), *tried(ITEM, WHOLE)])])
    assert claims([run.rows]).trust == [], "a marked row is in no headline"


@pytest.mark.parametrize("reason", ["the gate cannot strike here: no seccomp"])
def test_without_a_gate_cells_and_a_line_say_that_nothing_was_struck(
    tmp_path: Path, reason: str
) -> None:
    built = [state for state in WHOLE if state["strike"] != "error"]
    row = row_of(tmp_path, errors(0, reason), kills(0, reason), states=built)
    assert (cell(row, "error"), cell(row, "as_predicted")) == ("not done", "not done")
    (line,) = lines_of(row)
    assert f"no call was made to fail: {reason}" in line
    assert f"no saves were killed: {reason}" in line


def test_errors_that_hit_no_call_are_told(tmp_path: Path) -> None:
    built = [state for state in WHOLE if state["strike"] != "error"]
    row = row_of(tmp_path, errors(0), killed(1), kills(1), states=built)
    assert cell(row, "error") == "not done"
    (line,) = lines_of(row)
    assert "no call was made to fail: no error hit a call of its saves" in line
    assert row_of(tmp_path / "all", errors(1), killed(1), kills(1)).not_struck == ""
