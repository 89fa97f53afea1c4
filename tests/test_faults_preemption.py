"""Saves that a SIGTERM asks for or finds at work, and the end of the grace that follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Measure
from struck_saves import fault_row, struck_fault
from toy_framework import SWEEP, read_suite
from traced_saves import require_strace

from adapters.raw.doubles.slow import SAVE_S
from harness.analysis.columns import columns_of
from harness.analysis.row import Naming
from harness.experiments.faults import driver
from harness.experiments.faults.rows import FaultsRow
from harness.experiments.faults.sentences import details
from harness.run.errors import UsageError

GRACE_S = 1
assert GRACE_S < SAVE_S


def preempted(measure: Measure, fault: str, grace_s: int) -> FaultsRow:
    """Preempt the saves of a double, and strike them in no other way that is real."""
    require_strace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "fail_calls", lambda *_: None)
        patch.setattr(driver, "cut_power", lambda *_: None)
        run = measure([struck_fault(fault, instants=1, grace_s=grace_s)])
    return fault_row(run, fault)


def remains(row: FaultsRow) -> dict[str, tuple[str, str, str]]:
    """Return the verdict, the checkpoint and the save's words of each SIGTERM."""
    return {
        state["in_words"]: (state["verdict"], state["got"], state["said"])
        for state in row.struck
        if state["strike"] == "preemption"
    }


def shown(row: FaultsRow, name: str) -> str:
    """Return what a table shows of a row in a column."""
    text = columns_of(FaultsRow)[name].text
    assert text is not None
    return text(row)


TRAINING = "SIGTERM while training, with a handler that saves"
SAVING = "SIGTERM after save had returned, with a handler that waits"
UNHANDLED = "SIGTERM after save had returned, without a handler"
KILLED = "the process was killed when its 1 s of grace were over"
ENDED = "the process ended: killed by SIGTERM"


@pytest.mark.slow
def test_a_save_that_needs_longer_than_the_grace_is_ended_and_the_older_checkpoint_is_safe(
    measure: Measure,
) -> None:
    row = preempted(measure, "slow-to-rename", GRACE_S)
    assert remains(row) == {
        TRAINING: ("safe", "step-1", KILLED),
        SAVING: ("safe", "step-1", KILLED),
        UNHANDLED: ("safe", "step-1", ENDED),
    }
    assert (row.preemption, row.late, row.grace_s) == ("safe", 2, GRACE_S)
    assert (row.preempted_s, row.preempted_in_save_s) == (None, None)
    assert shown(row, "preempted_s") == "not within 1 s"
    assert shown(row, "preempted_in_save_s") == "not within 1 s"
    assert (
        "double[fault=slow-to-rename]: no checkpoint was durable within 1 s of a SIGTERM while "
        "training and in a save"
    ) in details([row], Naming.among([row]), is_short=True)


@pytest.mark.slow
def test_the_end_of_the_grace_leaves_a_broken_checkpoint_of_a_save_in_place(
    measure: Measure,
) -> None:
    row = preempted(measure, "slow-in-place", GRACE_S)
    verdicts = {words: verdict for words, (verdict, _, _) in remains(row).items()}
    assert verdicts == {TRAINING: "refused", SAVING: "refused", UNHANDLED: "refused"}
    assert (row.preemption, row.late) == ("refused", 2)


@pytest.mark.slow
def test_a_save_that_ends_within_the_grace_has_both_times(measure: Measure) -> None:
    row = preempted(measure, "slow-to-rename", 10 * SAVE_S)
    assert remains(row)[TRAINING] == ("safe", "step-2", "the save reported success")
    assert remains(row)[SAVING] == ("safe", "step-2", "the save reported success")
    assert (row.preemption, row.late) == ("safe", 0)
    for took in (row.preempted_s, row.preempted_in_save_s):
        assert took is not None
        assert SAVE_S <= took.value < 10 * SAVE_S
    assert shown(row, "preempted_in_save_s").startswith("3.")
    assert row.to_json()["preempted_in_save_s"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0", "grace_s takes a number from 1 on, not 0"),
        ("-30", "grace_s takes a number from 1 on, not -30"),
        ("inf", "grace_s takes a whole number, not inf"),
        ("nan", "grace_s takes a whole number, not nan"),
        ("1000000", "grace_s takes a number up to 3600, not 1000000"),
    ],
)
def test_a_grace_that_is_not_positive_and_finite_is_refused(
    tmp_path: Path, value: str, message: str
) -> None:
    text = SWEEP.replace("samples = 2", f'experiment = "faults"\ngrace_s = {value}')
    with pytest.raises(UsageError) as caught:
        read_suite(tmp_path, text)
    assert message in str(caught.value)
