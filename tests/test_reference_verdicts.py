"""The reference runs of two experiments agree on which checkpoints survive a power loss."""

from __future__ import annotations

import pytest

from harness.docs.reference import frameworks, full_run
from harness.experiments.cost.rows import CostRow
from harness.experiments.faults.rows import FaultsRow

BOTH = sorted(set(frameworks("faults")) & set(frameworks("bench")))


def durabilities(framework: str) -> dict[str, set[str]]:
    """Return what `bench` says of each method's power safety, where it knows."""
    found: dict[str, set[str]] = {}
    for row in full_run("bench", framework).rows:
        assert isinstance(row, CostRow)
        if row.status == "ok" and row.durability != "unknown":
            found.setdefault(row.method, set()).add(row.durability)
    return found


def whole_at_end(row: FaultsRow) -> bool | None:
    """Return whether every power loss at the end of a save leaves it; None where none was built."""
    at_end = [
        state["got"]
        for state in row.struck
        if state["strike"] == "power loss" and state["instant"] == row.steps
    ]
    return all(got == "step-2" for got in at_end) if at_end else None


@pytest.mark.parametrize("framework", BOTH)
def test_a_method_is_power_safe_where_every_power_loss_after_its_save_leaves_it(
    framework: str,
) -> None:
    told = durabilities(framework)
    agreed = 0
    for row in full_run("faults", framework).rows:
        assert isinstance(row, FaultsRow)
        is_whole = whole_at_end(row)
        if is_whole is not None and row.method in told:
            assert told[row.method] == {"never"} or is_whole, row.method
            assert "never" not in told[row.method] or not is_whole, row.method
            agreed += 1
    assert agreed > 5
