"""Fixtures for the tests of DeepFreeze, which name this module in `pytest_plugins`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deepfreeze_states import STEP, new_engine, new_state
from deepfreeze_stores import Digests, digests
from deepfreeze_victim import advance, opened

from adapters.deepfreeze import watch
from adapters.deepfreeze.store import Store


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


@pytest.fixture
def memory() -> Iterator[Path]:
    """The path of a folder in a file system in memory."""
    path = Path("/dev/shm") / f"deepfreeze-test-{os.getpid()}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def expected(scratch: Path) -> list[Digests]:
    """The digests of a store's state after each number of steps, up to four."""
    framework, _, state = opened(scratch, 0)
    after_steps = [digests(framework, state)]
    for _ in range(4):
        advance(framework, state)
        after_steps.append(digests(framework, state))
    return after_steps


@pytest.fixture(scope="session")
def first_store(scratch: Path) -> Path:
    """A store with a checkpoint of the first step, to be copied."""
    folder = scratch / "first-store"
    _, method, state = opened(folder, 1)
    Store(method, folder).save(state).finished()
    return folder
