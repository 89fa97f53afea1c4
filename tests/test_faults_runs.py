"""Runs of the experiment that cannot record, are interrupted, are shown or wrongly asked for."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Measure, Measured, table_of
from struck_saves import method_row, require_gate, struck, without_real_strikes
from stubs import command
from toy_framework import SWEEP, read_suite
from traced_saves import require_strace

from harness.driver import preflight
from harness.driver.arms import Arm
from harness.driver.environments import Environments
from harness.driver.session import Session, _SlotSession
from harness.durability import strace
from harness.experiments.faults import driver
from harness.experiments.faults.rows import FaultsRow
from harness.run import store
from harness.run.errors import UsageError
from harness.wire.case import Case


@pytest.fixture(scope="module")
def shown(measure: Measure, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """A run below a folder that has the name of the folder of recordings."""
    require_strace()
    where = tmp_path_factory.mktemp("parent") / "recordings"
    where.mkdir()
    with without_real_strikes():
        return measure([struck("npz", instants=3)], where=where)


# Without a tracer


def test_without_a_tracer_every_row_says_so(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strace, "available", lambda: "strace is not installed")
    rows = measure([struck("buffered"), struck("npz")]).rows
    reason = "no save can be recorded here: strace is not installed"
    assert [(row.status, row.phase, row.reason) for row in rows] == [
        ("unsupported", "record", reason)
    ] * 2


# Interruption


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_its_recordings(
    measure: Measure, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_strace()

    def interrupt(session: object) -> None:
        raise KeyboardInterrupt

    with without_real_strikes():
        with monkeypatch.context() as patch:
            patch.setattr(driver, "try_states", interrupt)
            with pytest.raises(KeyboardInterrupt):
                measure([struck("npz", instants=3)], results=tmp_path)
        run = store.Run(store.find(tmp_path, "latest"))
        [row] = table_of(run)
        assert (row.status, row.reason) == (
            "skipped",
            "not struck to the end: the run was interrupted",
        )
        messages = go_on(run, scratch)
    [row] = table_of(run)
    assert row.status == "ok"
    assert not any("call by call" in message for message in messages), "the recording was kept"
    kinds = [record.kind for record in run.records]
    assert (kinds.count("recorded"), kinds.count("tried")) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["record", "fail", "preempt"])
def test_a_stage_that_was_interrupted_in_its_second_case_goes_on(
    measure: Measure,
    scratch: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
) -> None:
    require_strace()
    require_gate()
    items = [struck("buffered", instants=1), struck("npz", instants=1)]
    run_job = _SlotSession.run_job

    def first_case_only(
        self: _SlotSession, wanted: str, cases: Sequence[Case], *more: Any, **others: Any
    ) -> str:
        if wanted != role:
            return run_job(self, wanted, cases, *more, **others)
        run_job(self, wanted, cases[:1], *more, **others)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_SlotSession, "run_job", first_case_only)
        with pytest.raises(KeyboardInterrupt):
            measure(items, results=tmp_path)
    run = store.Run(store.find(tmp_path, "latest"))
    go_on(run, scratch)
    for row in table_of(run):
        assert isinstance(row, FaultsRow)
        assert (row.status, row.reason) == ("ok", "")
        assert row.error_verdicts is not None
        assert "silent" not in row.error_verdicts
        assert row.preemption_verdicts == {"safe": 2}


def go_on(run: store.Run, scratch: Path) -> list[str]:
    """Measure what is missing of a run, and return the messages."""
    messages: list[str] = []
    interpreters = Environments(ROOT / ".venvs", ROOT / "adapters", {"raw": Path(sys.executable)})
    session = Session(
        run=run,
        arms={"": Arm(interpreters, {"raw": ("numpy",)})},
        scratch=scratch / run.name,
        not_direct=preflight.direct_io(scratch),
        timeout_s=60,
        on_event=lambda event: messages.append(event.text),
    )
    session.measure()
    return messages


# What is shown


@pytest.mark.slow
def test_a_folder_named_recordings_hides_no_call(shown: Measured) -> None:
    row = method_row(shown, "npz")
    assert row.not_seen == ""
    assert (row.instants, row.kill) == (3, "refused")


@pytest.mark.slow
def test_json_has_every_state_with_its_verdict(shown: Measured) -> None:
    done = command("show", str(shown.run.folder), "--format", "json")
    [row] = json.loads(done.output)
    stored = method_row(shown, "npz")
    assert (row["kill"], row["power_loss"], row["damage"]) == (
        stored.kill,
        stored.power_loss,
        stored.damage,
    )
    assert row["kill_verdicts"] == stored.kill_verdicts
    assert row["struck"] == stored.struck
    assert {state["verdict"] for state in row["struck"]} <= {"safe", "refused", "silent", "lost"}


@pytest.mark.slow
def test_csv_has_the_worst_verdicts(shown: Measured) -> None:
    done = command("show", str(shown.run.folder), "--format", "csv")
    [row] = csv.DictReader(io.StringIO(done.output))
    stored = method_row(shown, "npz")
    assert (row["kill"], row["power_loss"]) == (stored.kill, stored.power_loss)
    assert row["worst"] == stored.worst


# Wrong values


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("instants = 0", "instants takes a number from 1 on, not 0"),
        ('instants = "all"', "instants takes a whole number, not 'all'"),
        ("instants = 2000000", "instants takes a number up to 1000000, not 2000000"),
        ("kills = -1", "kills takes a number from 0 on, not -1"),
        ("instant = 5", "instant"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, line: str, message: str) -> None:
    text = SWEEP.replace("samples = 2", f'experiment = "faults"\n{line}')
    with pytest.raises(UsageError) as caught:
        read_suite(tmp_path, text)
    assert message in str(caught.value)


def test_zero_states_are_refused() -> None:
    done = command("run", "faults", "--framework", "raw", "--states", "0")
    assert done.status == 2
    assert done.errors.strip() == ("ckptbench: --states takes a number from 1 on or 'all', not 0")
