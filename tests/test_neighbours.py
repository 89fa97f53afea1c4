"""Methods that share a process do not pay for one that changes it."""

from __future__ import annotations

import pytest
from conftest import Measure, Measured, faulty, planned
from traced_saves import require_strace

from harness.run import store
from harness.worker.guards import neighbours

# For each fault, what it changes in words.
CHANGED = {
    "other-processors": "the processors it may run on",
    "patched-flush": "the functions of os that flush files",
    "lower-limit": "the limit RLIMIT_NOFILE",
    "other-folder": "the working directory, the umask",
    "busy-thread": "the load of the processors by threads that it left",
}


@pytest.fixture(scope="module")
def measured(measure: Measure) -> Measured:
    """Measure all of them in one process with an honest method and one that panics."""
    faults = [faulty(fault) for fault in (*CHANGED, "panic")]
    return measure([planned("buffered", samples=2), *faults])


@pytest.mark.parametrize("fault", CHANGED)
def test_the_method_that_changed_the_process_is_named(measured: Measured, fault: str) -> None:
    row = measured.row(f"double[fault={fault}]")
    assert (row.status, row.reason, row.verified) == ("ok", "", True)
    told = f"it changed {CHANGED[fault]} for its whole process, and was measured alone"
    if fault == "patched-flush":
        # Its files are not flushed any more, so nobody knows when they are durable.
        assert told in row.marks
    else:
        assert (row.marks, row.remarks) == ([], [told])


def test_an_innocent_method_is_measured_in_a_process_that_nobody_changed(
    measured: Measured,
) -> None:
    row = measured.row("buffered")
    # A busy machine may disturb a sample, so their number is not known.
    assert (row.status, row.verified) == ("ok", True)
    assert (row.marks, row.remarks) == ([], [])
    stood_last = measured.records("isolated")[-1]
    kept = measured.records("save")
    of_row = [record for record in kept if record.case == planned("buffered", samples=2).case.id]
    # What it had come to beside the others was taken again.
    assert len(of_row) > 3
    assert stood_last.stage == "save"


def test_no_process_is_shared_with_a_method_that_changes_it(measured: Measured) -> None:
    alone = {record.case for record in measured.records("isolated")}
    assert len(alone) == len(CHANGED)


def test_a_panic_is_its_own_row_alone(measured: Measured) -> None:
    row = measured.row("double[fault=panic]")
    assert (row.status, row.phase) == ("failed", "save")
    assert row.reason == "CancelledError: the double was asked to panic"


def test_a_flush_that_one_method_patched_is_watched_in_another(measure: Measure) -> None:
    require_strace()
    plan = [faulty("patched-flush", traced=True), faulty("renamed", traced=True)]
    found = measure(plan)
    assert found.row("double[fault=renamed]").data_durability == "at return"


@pytest.mark.parametrize("fault", ["patched-flush", "busy-thread"])
def test_without_the_guard_nobody_is_told(measure: Measure, fault: str) -> None:
    settings = store.Settings(without_guards=(neighbours.NAME,))
    found = measure([planned("buffered"), faulty(fault)], settings=settings)
    for row in found.rows:
        assert (row.status, row.verified, row.remarks) == ("ok", True, [])
        # Saves whose flush does nothing may also be faster than the disk, which is a mark.
        assert not any("it changed" in mark for mark in row.marks)
