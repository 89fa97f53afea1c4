"""Recordings of struck saves between the scratch directory and the run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conftest import planned

from harness.experiments.faults import left as lefts
from harness.experiments.faults.jobs import bring, keep, stood_at
from harness.experiments.faults.recorded_save import AT, first_number

CASE = planned("buffered").case


def session(tmp_path: Path) -> Any:
    """Return what the jobs ask of a session."""
    return SimpleNamespace(scratch=tmp_path / "scratch", files=lambda case: tmp_path / "run")


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
