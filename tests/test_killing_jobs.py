"""Kills of saves by jobs that are functions of the test: what is stored, and what is done again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import planned

from harness.experiments.faults import kill_order, killing_jobs
from harness.experiments.faults import left as lefts
from harness.experiments.faults.kill_order import Counted, Kill
from harness.experiments.faults.killing_jobs import kill_saves
from harness.experiments.faults.records import KilledRecord, KillsRecord
from harness.wire import endings
from harness.wire.case import Case
from harness.wire.folders import Folders
from harness.wire.records import Record

CASE = planned("buffered", experiment="faults").case
OTHER = planned("npz", experiment="faults").case
STRUCK = -signal.SIGKILL

Ending = Callable[[Kill], int]
"""Gives the exit code of the process of a kill."""


class Killed:
    """A session whose processes end as the test says, on saves whose changes no log shows.

    `counted` is the exit code of the process that counts the changes of a case; None where it exits
    with 0 in the middle of its save. There are three
    changes, and with the moments by chance eight kills. `ends` gives the codes of their processes.
    """

    slot = 0

    def __init__(
        self, folder: Path, cases: list[Case], ends: Ending, counted: int | None = 0
    ) -> None:
        self.scratch = folder / "scratch"
        self.run = folder / "run"
        self.cases = list(cases)
        self.jobs: list[list[Case]] = []
        self.records: list[Record] = []
        self.codes_at_most: int | None = None
        self.fails_after: dict[int, Case] = {}
        self._ends = ends
        self._counted = counted
        Folders(self.scratch).saves.mkdir(parents=True)
        for case in self.cases:
            self.files(case).mkdir(parents=True)

    def files(self, case: Case) -> Path:
        return self.run / case.id

    def announce(self, text: str) -> None:
        """Nobody watches."""

    def has(self, kind: str, case: Case) -> bool:
        return any((record.kind, record.case) == (kind, case.id) for record in self.records)

    def add(self, record: Record) -> None:
        self.records.append(record)

    def run_job(self, role: str, tasks: list[Case], prefix: object = ()) -> str:
        """Do each task, and store the exit codes."""
        folders = Folders(self.scratch)
        self.jobs.append(list(tasks))
        codes = [self._count(case) for case in tasks] if len(self.jobs) == 1 else self._kill(tasks)
        endings.write(folders, codes[: self.codes_at_most])
        failed = self.fails_after.get(len(self.jobs))
        if failed is not None:
            self.cases.remove(failed)
        return "" if self.codes_at_most is None else "no progress"

    def _count(self, case: Case) -> int:
        folders = Folders(self.scratch)
        if self._counted is None:
            (folders.saves / case.id).mkdir()
        elif self._counted == 0:
            counted = Counted(changes=3, renames=[], save_ns=10**6)
            kill_order.write_counted(folders.recording(case), counted)
        return self._counted or 0

    def _kill(self, tasks: list[Case]) -> list[int]:
        folders = Folders(self.scratch)
        codes = []
        for index, case in enumerate(tasks):
            if case in tasks[:index]:
                continue
            for kill in kill_order.read_order(folders.recording(case)) or []:
                codes.append(self._ends(kill))
                lefts.store_expected(folders.recording(case), lefts.of_kill(kill.name), {})
                if codes[-1] or kill == LEFT_BEHIND:
                    (folders.saves / kill_order.folder_name(case, kill)).mkdir()
        return codes

    def killed(self, case: Case) -> list[str]:
        """Return the kills of a case that are stored as real ones, in words."""
        records = [record for record in self.records if isinstance(record, KilledRecord)]
        of_case = [record for record in records if record.case == case.id]
        return [
            Kill(change=record.change, moment=record.moment, again=record.again).name
            for record in of_case
        ]

    def end(self, case: Case) -> KillsRecord:
        """Return the last record of a case."""
        records = [record for record in self.records if isinstance(record, KillsRecord)]
        (record,) = [record for record in records if record.case == case.id]
        return record


LEFT_BEHIND = Kill(change=2, is_predicted=False)
"""A kill whose process leaves its folder, whatever its exit code is."""

MOMENTS = [f"moment-{number}" for number in range(1, 6)]


def as_ordered(kill: Kill) -> int:
    return -signal.SIGALRM if kill.moment else STRUCK


def two_changes(kill: Kill) -> int:
    """End as ordered, but before a third change, which the save does not make."""
    return 0 if kill.change == 3 else as_ordered(kill)


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """No log shows the changes of these saves, so nothing is predicted."""
    states = SimpleNamespace(not_seen="a mapping was written")
    monkeypatch.setattr(killing_jobs, "States", lambda *args, **kwargs: states)
    monkeypatch.setattr(killing_jobs, "gate_command", lambda session: [])


def killed(folder: Path, cases: list[Case], ends: Ending, **changes: Any) -> Killed:
    session = Killed(folder, cases, ends, counted=changes.pop("counted", 0))
    for name, value in changes.items():
        setattr(session, name, value)
    kill_saves(session, "")  # type: ignore[arg-type]
    return session


def test_each_kill_that_came_is_stored_and_nothing_is_done_again(tmp_path: Path) -> None:
    session = killed(tmp_path, [CASE, OTHER], as_ordered)
    assert session.killed(CASE) == session.killed(OTHER) == ["1", "2", "3", *MOMENTS]
    assert [len(tasks) for tasks in session.jobs] == [2, 16]
    assert (session.end(CASE).kills, session.end(CASE).not_done) == (8, "")
    assert list(Folders(session.scratch).saves.iterdir()) == []


def test_a_save_that_ends_before_its_kill_gets_another_kill(tmp_path: Path) -> None:
    """A save may make fewer changes than the one that was counted."""
    session = killed(tmp_path, [CASE], two_changes)
    assert session.killed(CASE)[:2] == ["1", "2"]
    (again,) = session.killed(CASE)[7:]
    assert again in ("1-1", "2-1")
    assert session.end(CASE).not_done == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGSEGV, "ended by itself with SIGSEGV"),
        (-endings.OVERDUE, "did not end within 60 s"),
        (0, "ended by itself with exit code 0"),
    ],
)
def test_a_process_that_ends_by_itself_is_told_and_not_tried_again(
    tmp_path: Path, code: int, words: str
) -> None:
    def by_itself(kill: Kill) -> int:
        return code if kill == LEFT_BEHIND else as_ordered(kill)

    session = killed(tmp_path, [CASE], by_itself)
    assert session.killed(CASE) == ["1", "3", *MOMENTS]
    assert len(session.jobs) == 2
    assert session.end(CASE).not_done == f"one that was to be killed before change 2 {words}"
    assert list(Folders(session.scratch).saves.iterdir()) == []


def test_a_job_that_broke_leaves_the_kills_that_it_had_done(tmp_path: Path) -> None:
    session = killed(tmp_path, [CASE, OTHER], as_ordered, codes_at_most=10)
    assert session.killed(CASE) == ["1", "2", "3", *MOMENTS]
    assert session.killed(OTHER)[:2] == ["1", "2"]
    assert "moment-5" not in session.killed(OTHER)
    assert session.end(OTHER).not_done == "no progress"


@pytest.mark.parametrize("job", [1, 2])
def test_a_case_that_fails_in_a_job_has_no_more_kills(tmp_path: Path, job: int) -> None:
    session = killed(tmp_path, [CASE, OTHER], two_changes, fails_after={job: OTHER})
    assert all(OTHER not in tasks for tasks in session.jobs[job:])
    assert not session.has("kills", OTHER)
    assert session.end(CASE).not_done == ""


@pytest.mark.parametrize(
    ("counted", "words"), [(-signal.SIGABRT, "SIGABRT"), (None, "exit code 0")]
)
def test_a_count_that_broke_is_the_reason_that_nothing_was_killed(
    tmp_path: Path, counted: int | None, words: str
) -> None:
    session = killed(tmp_path, [CASE], as_ordered, counted=counted)
    assert session.killed(CASE) == []
    assert session.end(CASE).kills == 0
    assert session.end(CASE).not_done == (
        f"the save whose changes were to be counted ended by itself with {words}"
    )
    assert list(Folders(session.scratch).saves.iterdir()) == []


def test_without_a_gate_no_job_runs_and_the_reason_is_stored(tmp_path: Path) -> None:
    session = Killed(tmp_path, [CASE], as_ordered)
    kill_saves(session, "no seccomp")  # type: ignore[arg-type]
    assert session.jobs == []
    assert session.end(CASE).not_done == "no seccomp"
