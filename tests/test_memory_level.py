"""Checkpoints restored from shared memory: their loads are never cold, and read no files."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from conftest import Measure, faulty, planned

from harness.analysis.columns import cell
from harness.driver import machine, shared_memory
from harness.driver.session import Session
from harness.run import store
from harness.wire.folders import Folders
from harness.worker.guards import from_memory, without_memory

pytestmark = pytest.mark.skipif(
    not shared_memory.DEVICE.is_dir(), reason="this machine has no shared memory"
)


def test_another_process_restores_from_memory_and_nothing_stays_there(measure: Measure) -> None:
    found = measure([planned("deepfreeze-memory"), planned("deepfreeze")])
    row = found.row("deepfreeze-memory")
    assert (row.status, row.verified, row.load_cache) == ("ok", True, "memory")
    assert row.read_efficiency is None, "the disk is not a ceiling for memory"
    assert found.row("deepfreeze").load_cache != "memory"
    savers = {record.job for record in found.records("worker") if "save" in record.job}
    loaders = {record.job for record in found.records("worker") if "load" in record.job}
    assert savers
    assert loaders - savers == loaders != set()
    assert not shared_memory.folder_of(found.run.folder).exists()


def test_runs_of_one_name_in_two_places_do_not_share_memory(tmp_path: Path) -> None:
    first, second = (
        shared_memory.SharedMemory(tmp_path / place / "20261121-220953-test-raw")
        for place in ("one", "other")
    )
    try:
        kept = first.levels
        assert kept is not None
        second.clear()
        assert kept.is_dir()
        shared_memory.SharedMemory(tmp_path / "one" / "20261121-220953-test-raw")
        assert not kept.exists(), "a driver that continues a run removes what a killed driver left"
    finally:
        first.clear()


def test_a_checkpoint_whose_memory_a_killed_driver_took_along_is_saved_anew(
    tmp_path: Path,
) -> None:
    plan = [planned("deepfreeze-memory", from_memory=True), planned("deepfreeze")]
    run = store.create(tmp_path / "results", "test", ["pytest"], plan, machine.capture(tmp_path))
    folders = Folders(tmp_path / "scratch")
    lists = [folders.kept(item.case, rank=0) for item in plan]
    for kept in lists:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("[]")
    Session(run, {}, tmp_path / "scratch", None, None, lambda event: None)
    assert [kept.exists() for kept in lists] == [False, True]


@pytest.mark.slow
def test_ranks_restore_their_own_from_memory(measure: Measure) -> None:
    found = measure([planned("deepfreeze-memory", world=2, launcher="mpirun")])
    assert (found.rows[0].status, found.rows[0].load_cache) == ("ok", "memory"), found.rows[
        0
    ].reason


READS_FILES = "from its files, not from memory"


@pytest.mark.parametrize(
    ("guards", "status", "reason"),
    [((), "failed", READS_FILES), ((from_memory.NAME,), "ok", "")],
)
def test_a_method_that_reads_its_files_is_not_believed(
    measure: Measure, guards: tuple[str, ...], status: str, reason: str
) -> None:
    plan = [planned(method, from_memory=True) for method in ("buffered", "direct")]
    for row in measure(plan, settings=store.Settings(without_guards=guards)).rows:
        assert (row.status, row.verified) == (status, status == "ok"), row.reason
        assert reason in row.reason


@pytest.mark.parametrize(
    ("guards", "status", "reason"),
    [((), "failed", "Mismatch"), ((without_memory.NAME,), "ok", "")],
)
def test_files_must_hold_what_memory_does(
    measure: Measure, guards: tuple[str, ...], status: str, reason: str
) -> None:
    plan = [faulty("memory-alone", from_memory=True)]
    row = measure(plan, settings=store.Settings(without_guards=guards)).rows[0]
    assert (row.status, row.verified) == (status, status == "ok"), row.reason
    assert row.reason.startswith(reason)


def test_memory_holds_the_kept_checkpoint_where_more_saves_were_needed(measure: Measure) -> None:
    plan = [faulty("waits-with-memory", from_memory=True, processes=2)]
    (row,) = measure(plan).rows
    assert (row.status, row.reason, row.verified, row.load_cache) == ("ok", "", True, "memory")
    assert row.waits_in_step_s is not None


def test_a_process_that_holds_memory_lives_until_the_last_load(measure: Measure) -> None:
    (row,) = measure([faulty("memory-of-daemon", from_memory=True)]).rows
    assert (row.status, row.reason, row.verified, row.load_cache) == ("ok", "", True, "memory")
    assert row.remarks == ["its worker left processes behind (sleep), which were ended"]
    mine = psutil.Process().children(recursive=True)
    assert "sleep" not in [process.name() for process in mine]


def test_a_process_of_nobody_knows_whom_is_ended_beside_other_methods(measure: Measure) -> None:
    plan = [faulty("memory-of-daemon", from_memory=True), faulty("held-by-process")]
    found = measure(plan)
    held = found.row("double[fault=held-by-process]")
    assert (held.status, held.phase) == ("failed", "verify")
    row = found.row("double[fault=memory-of-daemon]")
    assert (row.status, row.reason, row.verified, row.load_cache) == ("ok", "", True, "memory")
    assert len(row.remarks) == 1
    assert "left processes behind (sleep), which were ended" in row.remarks[0]


def test_a_method_without_files_gets_no_number_that_files_have(measure: Measure) -> None:
    plan = [
        faulty("no-files", from_memory=True, files=False),
        faulty("memory-alone", from_memory=True, files=False),
    ]
    alone, with_files = measure(plan).rows
    assert (alone.status, alone.reason, alone.verified) == ("ok", "", True)
    assert (alone.durable_s, alone.write_efficiency, alone.file_bytes) == (None, None, None)
    assert alone.stall_s is not None
    assert alone.load_cache == "memory"
    assert cell(alone, "durability") == "–"
    assert with_files.status == "failed"
    assert "its adapter declares `files = false`" in with_files.reason
    without = store.Settings(without_guards=(from_memory.NAME,))
    with_files = measure(plan, settings=without).rows[1]
    assert (with_files.status, with_files.reason, with_files.verified) == ("ok", "", True)


def test_without_shared_memory_the_row_says_so(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared_memory, "DEVICE", tmp_path / "none")
    row = measure([planned("deepfreeze-memory")]).rows[0]
    assert row.status == "failed"
    assert "no shared memory" in row.reason
