"""Saves on real file systems lose power, and the experiment `faults` judges what is left."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from conftest import Measure, Measured, planned

from harness.analysis.row import Naming
from harness.durability.blocks.available import available
from harness.experiments.faults import EXPERIMENT, disk_jobs
from harness.experiments.faults.rows import FaultsRow
from harness.experiments.faults.sentences import details
from harness.run.plan import PlannedCase

traced = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
NO_ROOT = "only root may mount a file system; run ckptbench as root"


def on_disk(method: str, file_systems: str) -> PlannedCase:
    """A case of the raw adapter that is struck at few instants, and on real file systems."""
    item = planned(method, experiment="faults", samples=1, warmups=0)
    settings = {"instants": 30, "kills": 0, "file_systems": file_systems}
    return replace(item, case=replace(item.case, settings=settings))


def row_of(run: Measured, method: str) -> FaultsRow:
    row = run.row(method)
    assert isinstance(row, FaultsRow)
    assert (row.status, row.reason) == ("ok", "")
    return row


@traced
@pytest.mark.slow
@pytest.mark.patient
def test_a_save_without_a_flush_is_refused_on_ext4_and_deepfreeze_is_safe(
    measure: Measure,
) -> None:
    reason = available("ext4")
    if reason is not None:
        pytest.skip(reason)
    run = measure([on_disk("npz", "ext4"), on_disk("deepfreeze", "ext4")], timeout_s=300)
    careless, careful = row_of(run, "npz"), row_of(run, "deepfreeze")
    assert (careless.power_loss_on_ext4, careful.power_loss_on_ext4) == ("refused", "safe")
    assert careful.block_writes is not None
    assert careful.losses_on_disks is not None
    assert careful.losses_on_disks["ext4"] > careful.block_writes["ext4"] > 0
    assert careful.power_loss_on_xfs == ""
    states = [state for state in careful.struck if state["strike"] == "power loss on ext4"]
    assert {state["got"] for state in states} == {"step-1", "step-2"}


@pytest.mark.slow
@traced
def test_a_file_system_that_cannot_be_cut_says_why(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_jobs, "available", lambda kind: NO_ROOT)
    row = row_of(measure([on_disk("buffered", "all")]), "buffered")
    assert row.not_on_disks == dict.fromkeys(("ext4", "xfs", "btrfs"), NO_ROOT)
    lines = details([row], Naming.among([row]), is_short=True)
    assert any(
        line.endswith(f": no power was cut on ext4, xfs and btrfs: {NO_ROOT}") for line in lines
    )


def test_no_file_system_is_cut_unless_a_suite_asks() -> None:
    case = planned(experiment="faults").case
    assert EXPERIMENT.settings(case)["file_systems"] == "none"
    assert "power cut on all" in EXPERIMENT.settings_in_words(on_disk("npz", "all").case)
