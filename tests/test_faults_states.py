"""The states of a recorded save, and the limit of those in which one thing is lost alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_lines import CASE, ROOT, create, marked

from harness.durability.trees import File
from harness.experiments.faults import ALL_INSTANTS
from harness.experiments.faults.recorded_save import RecordedSave, write_calls
from harness.experiments.faults.states import States

NAMES = "abcdefgh"


@pytest.mark.parametrize(
    ("instants", "alone", "left_out"), [(60, 6, 1 + 2), (ALL_INSTANTS, len(NAMES), 0)]
)
def test_all_states_lift_the_limit_of_single_losses(
    tmp_path: Path, instants: int, alone: int, left_out: int
) -> None:
    files = {name: File(b"") for name in NAMES}
    save = RecordedSave(root=Path(ROOT), before={}, after=files, parts=(), expected={})
    save.write(tmp_path)
    calls = marked(create(name) for name in NAMES)
    write_calls(tmp_path, [f"{line}\n" for line in calls])
    states = States(tmp_path, CASE, instants)
    assert states.not_seen == ""
    end = f"after the creation of {NAMES[-1]}: the change of the name"
    assert sum(end in state.in_words for state in states) == alone
    assert states.singles_left_out == left_out
