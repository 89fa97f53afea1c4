"""Fixtures for the tests of DeepFreeze. A test file that needs them names this in pytest_plugins."""

from __future__ import annotations

from pathlib import Path

import pytest
from deepfreeze_states import STEP, new_engine, new_state

from adapters.deepfreeze import watch


@pytest.fixture
def folder(scratch: Path, request: pytest.FixtureRequest) -> Path:
    """An empty directory."""
    path = scratch / request.node.name.replace("/", "_")
    path.mkdir()
    return path


@pytest.fixture
def saved(folder: Path) -> Path:
    """A checkpoint of `new_state(1)`."""
    path = folder / "checkpoint"
    new_engine().save(new_state(1), path, STEP).finished()
    return path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that look at each other often, and do not wait long for one that has not come."""
    monkeypatch.setattr(watch, "ABSENT_S", 1.0)
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)
