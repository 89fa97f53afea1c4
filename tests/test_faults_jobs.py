"""Recordings of struck saves between the scratch directory and the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import planned

from harness.experiments.faults import left as lefts
from harness.experiments.faults.jobs import bring, keep, stood_at
from harness.experiments.faults.left import Left
from harness.experiments.faults.outcome import Outcome
from harness.experiments.faults.recorded_save import AT, first_number, report, report_file
from harness.experiments.faults.recording_jobs import _add_calls
from harness.experiments.faults.records import ErrorsRecord, PreemptedRecord
from harness.experiments.faults.striking_jobs import fail_calls, preempt
from harness.experiments.faults.trial import _reason
from harness.wire.case import Case
from harness.wire.folders import Folders
from harness.wire.records import Record

CASE = planned("buffered").case
OTHER = planned("npz").case


def session(tmp_path: Path) -> Any:
    """Return what the jobs ask of a session."""
    return SimpleNamespace(scratch=tmp_path / "scratch", files=lambda case: tmp_path / "run")


class Stopped:
    """A session whose jobs are functions of the test, on cases that are recorded already."""

    slot = 0

    def __init__(self, run: Path, scratch: Path, cases: list[Case], jobs: list[Any]) -> None:
        self.run = run
        self.scratch = scratch
        self.cases = cases
        self.jobs = jobs
        self.records: list[Record] = []
        for case in cases:
            self.files(case).mkdir(parents=True, exist_ok=True)

    def files(self, case: Case) -> Path:
        return self.run / case.id

    def recording(self, case: Case) -> Path:
        return self.scratch / "recordings" / case.id

    def announce(self, text: str) -> None:
        """Nobody watches."""

    def run_job(self, role: str, cases: list[Case], prefix: object = ()) -> str:
        return self.jobs.pop(0)(self)

    def has(self, kind: str, case: Case) -> bool:
        return any((record.kind, record.case) == (kind, case.id) for record in self.records)

    def add(self, record: Record) -> None:
        self.records.append(record)


def leave(recorded: Path, expected: str, words: str) -> None:
    """Store one directory as a struck save does, and the digests of the state that it saved."""
    lefts.store_expected(recorded, expected, {"weight": words})
    lefts.store(recorded, Left("error", words, expected), {})


def errors_end(case: Case) -> ErrorsRecord:
    return ErrorsRecord(kind="errors", case=case.id, process=0, rank=0, hit=1)


def second_case(session: Stopped) -> str:
    leave(session.recording(OTHER), "errors-0", "second")
    report(session.recording(OTHER), errors_end(OTHER))
    return ""


def words_of(recorded: Path) -> list[str]:
    return [left.in_words for left, _ in lefts.stored(recorded)]


@pytest.mark.parametrize(
    ("verdict", "judged", "reason"),
    [
        ("lost", "lost", "nothing loads; the save of step 2 reported success, and does not come"),
        ("refused", "silent", "the save of step 2 reported success, and does not come back"),
    ],
)
def test_a_report_of_success_makes_nothing_milder(verdict: Any, judged: str, reason: str) -> None:
    left = Left("error", "a failed fsync", "errors-0", must_be="step 2")
    outcome = lefts.judged(left, Outcome(verdict, "", "nothing loads"))
    assert outcome.verdict == judged
    assert outcome.reason.startswith(reason)


def interrupt(session: Stopped) -> str:
    raise KeyboardInterrupt


def test_a_job_that_ends_after_a_case_goes_on_with_the_next_one(tmp_path: Path) -> None:
    """As where the first method leaves something that would disturb the second one."""

    def first_case(session: Stopped) -> str:
        leave(session.recording(CASE), "errors-0", "first")
        report(session.recording(CASE), errors_end(CASE))
        return ""

    session = Stopped(tmp_path / "run", tmp_path / "1", [CASE, OTHER], [first_case, second_case])
    fail_calls(session, "")
    assert [record.case for record in session.records] == [CASE.id, OTHER.id]


def test_a_case_that_an_interrupted_stage_has_done_keeps_its_directories(tmp_path: Path) -> None:
    def first_case_and_then_interrupted(session: Stopped) -> str:
        leave(session.recording(CASE), "errors-0", "first")
        report(session.recording(CASE), errors_end(CASE))
        leave(session.recording(OTHER), "errors-0", "half")
        return interrupt(session)

    def both_cases(session: Stopped) -> str:
        leave(session.recording(CASE), "errors-0", "first again")
        report(session.recording(CASE), errors_end(CASE))
        return second_case(session)

    run = tmp_path / "run"
    stopped = Stopped(run, tmp_path / "1", [CASE, OTHER], [first_case_and_then_interrupted])
    with pytest.raises(KeyboardInterrupt):
        fail_calls(stopped, "")
    assert not stopped.records, "no case is done whose directories are not with the run"
    resumed = Stopped(run, tmp_path / "2", [CASE, OTHER], [both_cases])
    fail_calls(resumed, "")
    assert [record.case for record in resumed.records] == [CASE.id, OTHER.id]
    assert words_of(resumed.files(CASE)) == ["first again"]
    assert words_of(resumed.files(OTHER)) == ["second"]


def test_a_resumed_stage_has_no_directories_of_a_process_that_saved_another_state(
    tmp_path: Path,
) -> None:
    def hang_at_the_second_strike(session: Stopped) -> str:
        recorded = session.recording(CASE)
        leave(recorded, "errors-0", "first")
        folder = session.scratch / "hung"
        folder.mkdir()
        at = {"number": 1, "strike": "error", "in_words": "second"}
        at |= {"folder": str(folder), "expected": "errors-0"}
        (recorded / AT).write_text(json.dumps(at))
        return "no progress"

    def all_strikes(session: Stopped) -> str:
        recorded = session.recording(CASE)
        assert first_number(recorded) == 0
        assert words_of(recorded) == []
        leave(recorded, "errors-0", "first of the new state")
        report(recorded, errors_end(CASE))
        return ""

    run = tmp_path / "run"
    stopped = Stopped(run, tmp_path / "1", [CASE], [hang_at_the_second_strike, interrupt])
    with pytest.raises(KeyboardInterrupt):
        fail_calls(stopped, "")
    resumed = Stopped(run, tmp_path / "2", [CASE], [all_strikes])
    fail_calls(resumed, "")
    assert words_of(resumed.files(CASE)) == ["first of the new state"]


def test_a_preempted_case_that_begins_again_has_only_the_directories_of_its_last_process(
    tmp_path: Path,
) -> None:
    def end(session: Stopped, case: Case) -> None:
        leave(session.recording(case), lefts.of_preemption("training"), "whole")
        record = PreemptedRecord("preempted", case.id, 0, 0, training_ns=1, saving_ns=1)
        report(session.recording(case), record)

    def one_and_a_half(session: Stopped) -> str:
        end(session, CASE)
        leave(session.recording(OTHER), lefts.of_preemption("training"), "half")
        return "killed by SIGKILL"

    def the_other(session: Stopped) -> str:
        end(session, OTHER)
        return ""

    session = Stopped(tmp_path / "run", tmp_path / "1", [CASE, OTHER], [one_and_a_half, the_other])
    preempt(session)
    assert words_of(session.files(CASE)) == ["whole"]
    assert words_of(session.files(OTHER)) == ["whole"]


def test_an_interruption_while_a_recording_is_stored_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = session(tmp_path).scratch / "recordings" / CASE.id
    recorded.mkdir(parents=True)
    (recorded / "calls").write_text("first")
    keep(session(tmp_path), CASE)
    (recorded / "calls").write_text("second")

    def half_copied(source: Path, target: Path, **more: object) -> None:
        target.mkdir()
        raise KeyboardInterrupt

    def half_removed(folder: Path) -> None:
        (folder / "calls").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copytree", half_copied)
        with pytest.raises(KeyboardInterrupt):
            keep(session(tmp_path), CASE)
    assert (tmp_path / "run" / "calls").read_text() == "first"
    with monkeypatch.context() as patch:
        patch.setattr("harness.experiments.faults.jobs._complete", half_removed)
        with pytest.raises(KeyboardInterrupt):
            keep(session(tmp_path), CASE)
    shutil.rmtree(recorded)
    assert (bring(session(tmp_path), CASE) / "calls").read_text() == "second"


def test_a_resumed_run_does_not_begin_where_a_process_of_another_stage_hung(tmp_path: Path) -> None:
    recorded = session(tmp_path).scratch / "recordings" / CASE.id
    recorded.mkdir(parents=True)
    (recorded / "calls").write_text("kept")
    (recorded / AT).write_text(json.dumps({"number": 4}))
    assert stood_at(recorded) == {"number": 4}
    assert first_number(recorded) == 5
    (recorded / AT).write_text(json.dumps({"number": 7}))
    keep(session(tmp_path), CASE)
    for file in recorded.iterdir():
        file.unlink()
    recorded.rmdir()
    brought = bring(session(tmp_path), CASE)
    assert first_number(brought) == 0
    assert {file.name for file in brought.iterdir()} == {"calls"}


def test_processes_that_save_other_states_keep_their_digests_apart(tmp_path: Path) -> None:
    lefts.store_expected(tmp_path, lefts.of_errors(0), {"weight": "first"})
    lefts.store_expected(tmp_path, lefts.of_errors(5), {"weight": "second"})
    assert lefts.expected(tmp_path, lefts.of_errors(0)) == {"weight": "first"}
    assert lefts.expected_names(tmp_path) == ["errors-0", "errors-5"]


def test_a_log_that_was_cut_off_fails_its_case_alone(tmp_path: Path) -> None:
    failed: list[tuple[Case, str]] = []
    session: Any = SimpleNamespace(
        scratch=tmp_path, fail=lambda case, phase, reason: failed.append((case, reason))
    )
    (tmp_path / "calls.log").write_text("")
    recorded = Folders(tmp_path).recording(CASE)
    recorded.mkdir(parents=True)
    report_file(recorded, "recorded").write_text("{}")
    _add_calls(session, [CASE, OTHER], tmp_path / "calls.log")
    ((case, reason),) = failed
    assert case == CASE
    assert "mark" in reason
    assert not report_file(recorded, "recorded").exists()


def test_a_reason_does_not_depend_on_the_scratch_directory() -> None:
    folder = Path("/", *["long"] * 100)
    assert _reason(f"OSError: {folder}/step-2/weights: no such file", folder) == (
        "OSError: …/step-2/weights: no such file"
    )
