"""Every fault of the public test double becomes a failed row that names what was wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Measure, Measured, faulty, planned

from adapters.base import DirectIo, Place
from adapters.raw.double import Double
from adapters.raw.doubles import faults
from adapters.raw.framework import Raw

HUNG_S = 10  # longer than a worker needs to start beside other tests
REASONS = {
    "no-op-load": ("verify", r"leaves differ from the saved state: weights/"),
    "one-leaf-missing": (
        "verify",
        r"^Mismatch: 1 of \d+ leaves differ from the saved state: weights/classifier",
    ),
    "load-from-temporary": ("load", r"^FileNotFoundError: .*stash-"),
    "load-from-memory": (
        "verify",
        r"read \d+ of the checkpoint's \d+ bytes from the device, and none were cached",
    ),
    "mapped": ("verify", r"rank-0.bin is still mapped after the load"),
    "wrong-dtype": ("verify", r"is int32\[.*\] and was saved as float32\["),
    "no-rng": ("verify", r"^Mismatch: 1 of \d+ leaves differ from the saved state: rng/numpy$"),
    "alias": ("verify", r"leaves differ from the saved state: .*weights/"),
    "late-buffers": ("verify", r"leaves differ from the saved state: buffers/"),
    "truncated": ("load", r"EOFError: the file ends at byte \d+, 1 bytes early"),
    "late-work": (
        "finished",
        r"^ChangedPages: rank-0.bin had other bytes at \d+ a moment later than when finished\(\)",
    ),
    "removes-later": ("finished", r"^ChangedPages: extra.tmp came or went a moment later than"),
    "elsewhere": (
        "ceiling",
        r"^StrayFiles: symbolic links lead out of the checkpoint \(checkpoint\); all of its bytes",
    ),
    "left-open": (
        "finished",
        r"rank-0.bin was still open for writing after finished\(\) had returned",
    ),
    "stray": ("ceiling", r"left left-behind.tmp beside the checkpoint"),
    "background-error": ("finished", r"OSError: the double's background work failed"),
    "lost-error": (
        "ceiling",
        r"exception in a background thread: OSError: the double's background work failed",
    ),
    "dies-in-training": (
        "ceiling",
        r"exception in a background thread: OSError: the double's background work failed",
    ),
    "raises": ("save", r"RuntimeError: the double was asked to raise"),
    "exits": ("save", r"the process ended before its work was done"),
    "killed": ("save", r"killed by SIGKILL"),
    "hangs": ("save", r"no progress for \d+ s, so the process was killed"),
    "hangs-in-load": ("load", r"no progress for \d+ s, so the process was killed"),
    "out-of-memory": ("save", r"MemoryError"),
    "rubbish": ("records", r"the worker wrote an invalid record: schema None"),
}


@pytest.fixture(scope="module")
def run(measure: Measure) -> Measured:
    """Measure all faults in one run, because a failure must not stop the others."""
    return measure(
        [planned("buffered"), *(faulty(fault) for fault in REASONS), faulty("none")],
        timeout_s=HUNG_S,
    )


@pytest.mark.parametrize("fault", REASONS)
def test_fault_is_a_failed_row_that_says_what_was_wrong(run: Measured, fault: str) -> None:
    phase, reason = REASONS[fault]
    row = run.row(f"double[fault={fault}]")
    assert (row.status, row.phase) == ("failed", phase), row.reason
    assert re.search(reason, row.reason), row.reason
    assert row.durable_s is None, "wrong bytes yield no number"
    assert not row.verified


@pytest.mark.parametrize("method", ["buffered", "double[fault=none]"])
def test_good_methods_beside_them_are_measured(run: Measured, method: str) -> None:
    row = run.row(method)
    assert row.reason == ""
    assert (row.status, row.verified) == ("ok", True)
    assert row.samples >= 1


def test_scratch_is_clean_after_all_that(run: Measured) -> None:
    assert not run.scratch.exists()


def test_a_load_that_spoils_the_state_costs_its_own_row_alone(measure: Measure) -> None:
    spoiling = measure([faulty("mapped"), planned("buffered", samples=1)])
    assert spoiling.row("double[fault=mapped]").status == "failed"
    assert (spoiling.row("buffered").status, spoiling.row("buffered").reason) == ("ok", "")


@pytest.mark.parametrize("fault", sorted(faults()))
def test_every_fault_of_the_double_is_tested_somewhere(fault: str) -> None:
    texts = [file.read_text() for file in Path(__file__).parent.glob("test_*.py")]
    assert any(f'"{fault}"' in text or f"fault={fault}]" in text for text in texts)


def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    place = Place(rank=0, world=1, device="cpu", temporary=tmp_path, io=DirectIo(False, 0, 0))
    with pytest.raises(ValueError, match="unknown fault 'no-op' .*known: alias, .*no-op-load"):
        Double(place, Raw(), {"fault": "no-op"})
