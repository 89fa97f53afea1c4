"""Cases of the experiment `faults` on the raw adapter, and their rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from conftest import Measured, faulty, planned

from harness.durability import gate
from harness.experiments.faults import driver
from harness.experiments.faults.rows import FaultsRow
from harness.run.plan import PlannedCase

ALL = 60
"""More instants than a save of the raw adapter has."""


def struck(method: str, instants: int = ALL, kills: int = 0) -> PlannedCase:
    """A method whose save is struck, without real kills."""
    return _with_settings(planned(method, experiment="faults"), instants, kills)


def struck_fault(fault: str, instants: int = ALL, kills: int = 0, **more: int) -> PlannedCase:
    """The test double with a misbehaviour, whose save is struck."""
    return _with_settings(faulty(fault, experiment="faults"), instants, kills, **more)


def fault_row(run: Measured, fault: str) -> FaultsRow:
    """The row of the test double with a misbehaviour."""
    return method_row(run, f"double[fault={fault}]")


def method_row(run: Measured, method: str) -> FaultsRow:
    """The row of a method, whose measurement has not failed."""
    row = run.row(method)
    assert isinstance(row, FaultsRow)
    assert (row.status, row.reason) == ("ok", "")
    return row


def _with_settings(item: PlannedCase, instants: int, kills: int, **more: int) -> PlannedCase:
    settings = {"instants": instants, "kills": kills, **more}
    return replace(item, case=replace(item.case, settings=settings))


def require_gate() -> None:
    """Skip the test where calls cannot be made to fail."""
    obstacle = gate.available()
    if obstacle is not None:
        pytest.skip(obstacle)


@contextmanager
def without_real_strikes() -> Iterator[None]:
    """Leave out the saves that are struck for real, which other tests have, within the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "available", lambda: "this test builds states only")
        patch.setattr(driver, "preempt", lambda session: None)
        patch.setattr(driver, "cut_power", lambda session: None)
        yield
