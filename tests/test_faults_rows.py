"""The row of struck saves says what failed saves leave behind, in its table and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drawing import item, stored
from struck_records import KNOWN, struck, tried

from harness.analysis.columns import columns_of
from harness.analysis.row import Naming
from harness.analysis.tables import table
from harness.cli.show import show
from harness.experiments.faults.cells import of_next_saves
from harness.experiments.faults.records import ErrorsRecord, RecordedRecord
from harness.experiments.faults.rows import FaultsRow
from harness.experiments.faults.sentences import meaning
from harness.run import store
from harness.wire.records import Record

METHOD = item("renamed", experiment="faults")
FILE_BYTES = 1000


def failed_saves(grew_bytes: int) -> list[Record]:
    """Return the records of four failed saves, after which the process had grown."""
    case = METHOD.case.id
    nexts = [
        struck("next save", None, "safe", succeeded=True, stray_files=("step-2.tmp",)),
        struck("next save", None, "safe", succeeded=True, stray_files=("step-2.tmp", "log")),
        struck("next save", None, "safe", succeeded=False, stray_processes=("sleep 60",)),
        struck("next save", None, "silent", succeeded=True),
    ]
    errors = [struck("error", None, "safe", succeeded=False) for _ in nexts]
    recorded = {"files": 1, "file_bytes": FILE_BYTES}
    grown = {"hit": 4, "grew_bytes": grew_bytes, "repeated": 3}
    return [
        RecordedRecord(kind="recorded", case=case, **KNOWN, **recorded),
        ErrorsRecord(kind="errors", case=case, **KNOWN, **grown),
        *tried(METHOD, [*errors, *nexts]),
    ]


def test_a_next_save_after_which_nothing_is_left_has_failed(tmp_path: Path) -> None:
    """It reported success, so nobody would notice."""
    of_next = struck("next save", None, "lost", succeeded=True)
    of_error = struck("error", None, "lost", succeeded=False)
    found = [*failed_saves(grew_bytes=0)[:2], *tried(METHOD, [of_error, of_next])]
    (row,) = stored(tmp_path, [(METHOD, found)]).rows
    assert isinstance(row, FaultsRow)
    assert (row.next_fails, row.next_broken) == (1, 1)


@pytest.mark.parametrize(("really", "is_safe"), [("safe", True), ("refused", False)])
def test_a_method_that_a_real_kill_broke_is_not_safe(
    tmp_path: Path, really: str, is_safe: bool
) -> None:
    """It may have hit an instant that was not built from the log."""
    strikes = ("kill", "power loss", "real kill")
    verdicts = ("safe", "safe", really)
    found = [struck(*each) for each in zip(strikes, (0, 0, None), verdicts, strict=True)]
    run = stored(tmp_path, [(METHOD, [*failed_saves(grew_bytes=0)[:1], *tried(METHOD, found)])])
    (row,) = run.rows
    assert isinstance(row, FaultsRow)
    assert row.kill == "safe"
    said = meaning([row], Naming.among([row]))
    assert said.startswith("With no method") is not is_safe


def row_of(folder: Path, grew_bytes: int) -> FaultsRow:
    (row,) = stored(folder, [(METHOD, failed_saves(grew_bytes))]).rows
    assert isinstance(row, FaultsRow)
    return row


def test_failed_saves_are_counted_that_leave_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(tmp_path, [(METHOD, failed_saves(grew_bytes=2000))])
    (row,) = run.rows
    assert isinstance(row, FaultsRow)
    assert (row.next_saves, row.left_files, row.left_processes) == (4, 2, 1)
    assert (row.next_fails, row.next_broken) == (2, 1)
    cells = columns_of(FaultsRow)
    assert cells["left_files"].text(row) == "files 2/4, processes 1/4, 2 kB of memory"
    assert cells["next_fails"].text(row) == "2, 1 not noticed"
    show(store.Run(run.stored.folder), "json")
    [described] = json.loads(capsys.readouterr().out)
    strays = [state["stray_files"] for state in described["struck"]]
    assert strays[4:] == [["step-2.tmp"], ["step-2.tmp", "log"], [], []]


@pytest.mark.parametrize(("grew_bytes", "left"), [(0, 0), (FILE_BYTES, 0), (1500, 0), (1501, 1501)])
def test_memory_counts_from_half_a_checkpoint_a_save_on(
    tmp_path: Path, grew_bytes: int, left: int
) -> None:
    assert row_of(tmp_path, grew_bytes).left_memory_bytes == left


def test_a_dash_says_that_no_save_followed_those_that_failed(tmp_path: Path) -> None:
    of_error = struck("error", None, "safe", succeeded=False)
    (row,) = stored(tmp_path, [(METHOD, tried(METHOD, [of_error]))]).rows
    assert of_next_saves(row) == "–"


def test_failed_saves_after_which_all_is_well_are_shown_too(tmp_path: Path) -> None:
    """A dash would say that nobody has looked."""
    of_next = struck("next save", None, "safe", succeeded=True)
    of_error = struck("error", None, "safe", succeeded=False)
    found = [*failed_saves(grew_bytes=0)[:2], *tried(METHOD, [of_error, of_next])]
    (row,) = stored(tmp_path, [(METHOD, found)]).rows
    shown = table([row])
    assert (shown["next save fails"].iloc[0], shown["left behind"].iloc[0]) == ("0", "nothing")
