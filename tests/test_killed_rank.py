"""Killed ranks: which kills are tried, how the other rank went on, and what both get back."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import planned

from harness.analysis.columns import columns_of
from harness.analysis.row import Naming, Wanted
from harness.analysis.rows import rows
from harness.experiments.faults.outcome import Outcome
from harness.experiments.killed_rank import EXPERIMENT, fates, sentences
from harness.experiments.killed_rank.driver import _CaseOfRanks
from harness.experiments.killed_rank.orders import Notes, Order, orders, undisturbed
from harness.experiments.killed_rank.records import (
    RankKillRecord,
    RankLeftRecord,
    RanksResumedRecord,
    RanksStruckRecord,
)
from harness.experiments.killed_rank.rows import KilledRankRow
from harness.experiments.killed_rank.struck_save import _saves
from harness.experiments.killed_rank.worker import _load_limit_s, together
from harness.experiments.recovery.events import EventLog, files_of
from harness.wire.folders import Folders
from harness.wire.records import Record
from harness.wire.strikes import Report

CASE = replace(planned(experiment="killed_rank").case, world=2)
KILLED_NS = 5_000_000_000
VICTIM_GROUP, OTHER_GROUP = 100, 200


# Which kills are tried


def test_a_short_save_is_struck_before_all_of_its_changes() -> None:
    made = orders(changes=4, writes=2, at_most=12, limit_s=15)
    assert [order.at for order in made if is_of(order, "directory", "kill-group")] == [1, 2, 3, 4]
    assert [order.at for order in made if is_of(order, "write", "kill-group")] == [1, 2]
    assert [order.at for order in made if is_of(order, "directory", "kill-others")] == [1, 4]
    assert [order.number for order in made] == list(range(1, 9))


@pytest.mark.parametrize("at_most", [6, 12, 100])
def test_a_long_save_has_no_more_kills_than_were_asked_for(at_most: int) -> None:
    made = orders(changes=50, writes=1000, at_most=at_most, limit_s=15)
    assert len(made) == min(at_most, 54)
    callers = [order.at for order in made if is_of(order, "directory", "kill-group")]
    assert (callers[0], callers[-1]) == (1, 50)


def test_a_save_without_writes_or_changes_has_no_such_kills() -> None:
    assert {order.call for order in orders(3, 0, 12, 15)} == {"directory"}
    assert orders(0, 0, 12, 15) == []


@pytest.mark.parametrize(("settings", "states"), [({}, 26), ({"kills": 1_000_000}, 202)])
def test_two_checkpoints_of_every_kill_need_room(settings: dict[str, int], states: int) -> None:
    """They are loaded when the last rank has been killed."""
    assert EXPERIMENT.states_at_work(replace(CASE, settings=settings)) == states


def is_of(order: Order, call: str, effect: str) -> bool:
    return (order.call, order.effect) == (call, effect)


# The fate of the other rank


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    made = Notes(Folders(tmp_path), CASE)
    made.write_order(order())
    write_events(made, 0, begin(VICTIM_GROUP))
    return made


def test_a_save_that_reports_success_has_finished(notes: Notes) -> None:
    write_events(notes, 1, begin(OTHER_GROUP), {"name": "finished", "at_ns": KILLED_NS + 7})
    record = fate(notes)
    assert (record.fate, record.after_ns, record.victim) == ("finished", 7, 0)
    assert record.in_words == "rank 0 killed before its mkdir step-2"


def test_a_save_that_had_ended_before_the_kill_waited_for_nobody(notes: Notes) -> None:
    write_events(notes, 1, begin(OTHER_GROUP), {"name": "finished", "at_ns": KILLED_NS - 7})
    assert fate(notes).after_ns == 0


def test_an_error_is_kept_with_its_words(notes: Notes) -> None:
    raised = {"name": "raised", "at_ns": KILLED_NS + 7, "said": "closed by peer"}
    write_events(notes, 1, begin(OTHER_GROUP), raised)
    record = fate(notes)
    assert (record.fate, record.said) == ("raised", "closed by peer")


def test_a_rank_that_stood_still_until_the_limit_hung_and_says_where(notes: Notes) -> None:
    write_events(notes, 1, begin(OTHER_GROUP))
    notes.hung(1, 1).write_text(STACK)
    record = fate(notes)
    assert record.fate == "hung"
    assert record.said == "stood in wait of lib/distributed.py"
    assert record.after_ns == 1_000_000_000 + 15_000_000_000 - KILLED_NS


def test_a_rank_whose_process_ended_by_itself_has_died(notes: Notes) -> None:
    write_events(notes, 1, begin(OTHER_GROUP))
    notes.hung(1, 1).write_text("")
    record = fate(notes)
    assert (record.fate, record.after_ns) == ("died", None)


def test_the_rank_that_makes_the_call_outlives_the_other_one_where_that_was_ordered(
    notes: Notes,
) -> None:
    write_events(notes, 1, begin(OTHER_GROUP), {"name": "finished", "at_ns": KILLED_NS + 7})
    report = Report(1, 1, "mkdir step-2", group=OTHER_GROUP, at_ns=KILLED_NS)
    record = fates.of_kill(notes, order("kill-others"), report, process=0)
    assert record is not None
    assert (record.victim, record.is_caller, record.fate) == (0, False, "finished")
    assert record.in_words == "rank 0 killed before the other rank's mkdir step-2"


@pytest.mark.parametrize("struck", [0, 1])
def test_a_kill_that_hit_no_rank_is_no_record(notes: Notes, struck: int) -> None:
    if not struck:
        write_events(notes, 1, begin(OTHER_GROUP))
    # With a strike, rank 1 never began, so it is not known whom the strike hit.
    report = Report(struck, 1, "mkdir step-2", group=VICTIM_GROUP, at_ns=KILLED_NS)
    assert fates.of_kill(notes, order(), report, process=0) is None


@pytest.mark.parametrize(
    ("struck", "both_finished", "fails"), [(0, True, False), (0, False, True), (1, True, True)]
)
def test_a_kill_may_miss_only_where_every_save_had_ended(
    notes: Notes, struck: int, both_finished: bool, fails: bool
) -> None:
    """A strike that hit a process of its own group is no kill that came too late."""
    finished = {"name": "finished", "at_ns": KILLED_NS + 7}
    write_events(notes, 0, begin(VICTIM_GROUP), finished)
    write_events(notes, 1, begin(OTHER_GROUP), *[finished] * both_finished)
    said: list[str] = []
    session: Any = SimpleNamespace(
        scratch=notes.folders.scratch, fail=lambda case, phase, reason: said.append(reason)
    )
    kills = _CaseOfRanks.__new__(_CaseOfRanks)
    kills._session, kills._case, kills._notes = session, CASE, notes
    report = Report(struck, 1, "mkdir step-2", group=7, at_ns=KILLED_NS)
    kills._require_finished(order(), "kill 1 of 8", report, "")
    expected = "kill 1 of 8 hit no rank: it struck a process that is no rank's"
    assert said == ([expected] if fails else [])


def test_the_checkpoints_of_a_case_go_with_its_notes(notes: Notes) -> None:
    another = replace(CASE, settings={"kills": 7})
    for each in (notes, Notes(notes.folders, another)):
        each.checkpoints(1).mkdir(parents=True)
    notes.remove()
    assert not notes.folder.exists()
    assert [path.name for path in notes.folders.saves.iterdir()] == [f"{another.id}-1"]


def test_a_large_state_may_take_longer_to_load(tmp_path: Path) -> None:
    assert _load_limit_s(tmp_path) == 60
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(2_000_000_000)
    assert _load_limit_s(tmp_path) == 160


STACK = """Timeout (0:00:15)!
Thread 0x00007f (most recent call first):
  File "/usr/lib/threading.py", line 1 in run

Thread 0x00008f (most recent call first):
  File "/site/lib/distributed.py", line 1 in wait
  File "/ckptbench/harness/experiments/killed_rank/struck_save.py", line 1 in _save_newer
"""


def order(effect: str = "kill-group") -> Order:
    return replace(orders(3, 1, 12, 15.0)[0], effect=effect)


def begin(group: int) -> dict[str, object]:
    return {"name": "begin", "at_ns": 1_000_000_000, "group": group, "pid": 1}


def write_events(notes: Notes, rank: int, *events: dict[str, object]) -> None:
    lines = [json.dumps(event) + "\n" for event in events]
    (notes.of_save(1) / f"{rank}-1.jsonl").write_text("".join(lines))


def fate(notes: Notes) -> RankKillRecord:
    first = f"mkdir {notes.folder_name(1)}/step-2"
    report = Report(1, 1, first, group=VICTIM_GROUP, at_ns=KILLED_NS)
    record = fates.of_kill(notes, order(), report, process=0)
    assert record is not None
    return record


def test_nobody_dies_in_the_undisturbed_save() -> None:
    assert not undisturbed(1.0).kills
    assert all(order.kills for order in orders(3, 1, 12, 15.0))


# What the ranks get back together


@pytest.mark.parametrize(
    ("first", "second", "verdict", "reason"),
    [
        (Outcome("safe", "step-1", ""), Outcome("safe", "step-1", ""), "safe", ""),
        (
            Outcome("safe", "step-2", ""),
            Outcome("safe", "step-1", ""),
            "silent",
            "rank 0 gets step-2 and rank 1 gets step-1",
        ),
        (
            Outcome("safe", "step-2", ""),
            Outcome("refused", "", "no file"),
            "refused",
            "rank 1: no file",
        ),
        (Outcome("lost", "", "none"), Outcome("silent", "", "zeros"), "lost", "rank 0: none"),
    ],
)
def test_the_worst_rank_decides(first: Outcome, second: Outcome, verdict: str, reason: str) -> None:
    assert (together([first, second]).verdict, together([first, second]).reason) == (
        verdict,
        reason,
    )
    assert together([second, first]).verdict == verdict


# The row


def test_a_row_counts_verdicts_and_fates() -> None:
    row = killed_row(
        kill(1, "raised", 2_000_000_000), left(1, "safe"),
        kill(2, "hung", 14_000_000_000), left(2, "refused"),
        kill(3, "died", None), left(3, "refused"),
        struck(3), RanksResumedRecord("ranks-resumed", CASE.id, 0, 0),
    )  # fmt: skip
    assert (row.kills, row.killed_rank) == (3, "refused")
    assert row.killed_rank_verdicts == {"safe": 1, "refused": 2}
    assert row.fates == {"raised": 1, "hung": 1, "died": 1}
    assert row.raised_after is not None
    assert row.raised_after.value == 2.0
    assert row.hung_for is not None
    assert row.hung_for.value == 14.0
    assert row.worst == "kill 2: refused, why 2"
    assert row.first_hang == "kill 2: the other rank stood in wait"


def test_a_method_is_not_called_safe_where_kills_came_too_late() -> None:
    resumed = RanksResumedRecord("ranks-resumed", CASE.id, 0, 0)
    some = [kill(1, "raised", 1), left(1, "safe"), resumed]
    late, reached = killed_row(*some, struck(1, of=3)), killed_row(*some, struck(1))
    columns = columns_of(KilledRankRow)["kills"]
    assert columns.text is not None
    assert (columns.text(late), columns.text(reached)) == ("1 of 3", "1")
    naming = Naming.among([late])
    assert sentences.meaning([late], naming) == (
        "With no method is a resumed run safe wherever one rank is killed. "
        f"{naming.full_name(late)} was safe in 1 kills, and 2 came too late."
    )
    assert "is safe wherever one rank is killed with" in sentences.meaning([reached], naming)
    trust = sentences.claims([[late, reached]]).trust
    assert trust == ["1 of 2 methods are safe wherever one rank is killed"]


def test_a_row_whose_loads_have_not_ended_is_interrupted() -> None:
    row = killed_row(kill(1, "raised", 1), left(1, "safe"), struck(1))
    assert row.status == "skipped"
    assert "interrupted" in row.reason


def killed_row(*records: Record) -> KilledRankRow:
    (row,) = rows([Wanted(CASE, 1, 1, False)], list(records))
    assert isinstance(row, KilledRankRow)
    return row


def kill(number: int, fate: str, after_ns: int | None) -> RankKillRecord:
    words = f"kill {number}"
    said = "stood in wait" if fate == "hung" else ""
    return RankKillRecord("rank-kill", CASE.id, 0, 0, number, words, 0, True, fate, after_ns, said)


def left(number: int, verdict: str) -> RankLeftRecord:
    reason = "" if verdict == "safe" else f"why {number}"
    return RankLeftRecord("rank-left", CASE.id, 0, 0, number, verdict, "", reason)


def struck(kills: int, of: int | None = None) -> RanksStruckRecord:
    late = (of or kills) - kills
    return RanksStruckRecord("ranks-struck", CASE.id, 0, 0, 3, 1, 9, kills, late)


def test_a_rank_saves_from_the_beginning_of_its_save_to_the_end(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 1)
    (file,) = files_of(tmp_path, 1)
    assert not _saves(file)
    log.write("begin", pid=os.getpid())
    assert _saves(file)
    log.write("finished")
    assert not _saves(file)
