"""Every method saves and loads bit by bit what adapter.toml declares, and fails as declared."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from declarations import Declaration, failures, has_a_race, is_broken
from subject import (
    SUBJECT,
    covered,
    digests,
    new_method,
    opened,
    same,
    save,
    save_behind_a_step,
    train,
)

import workloads
from adapters.base import Method
from adapters.shared.quirks import Obstacle
from workloads.workload import BF16_MIXED, FLOAT32

QUIRKS = SUBJECT.quirks
FROM_SCRATCH = SUBJECT.working(SUBJECT.chosen(QUIRKS.cases_from_scratch))
BEHIND_A_SAVE = [
    (name, case)
    for name, case in SUBJECT.working(SUBJECT.chosen(QUIRKS.cases_behind_a_save))
    if not has_a_race(SUBJECT.methods[name])
]
FAILURES = [
    (name, failure) for name, method in SUBJECT.methods.items() for failure in failures(method)
]
NO_ROOM_BYTES = 10_000


@pytest.mark.parametrize(("name", "case"), SUBJECT.working(SUBJECT.cases))
def test_a_load_restores_what_is_covered_and_nothing_else(
    lasting_framework: Any, prepared: Any, name: str, case: str, tmp_path: Path
) -> None:
    state = prepared(case, 1)
    saved = digests(lasting_framework, state)
    method = new_method(name, lasting_framework)
    with opened(method, state):
        save(method, state, tmp_path / "checkpoint")
        assert digests(lasting_framework, state) == saved
        train(lasting_framework, state, 2)
        target = prepared(case, 2)
        method.load(target, tmp_path / "checkpoint")
    expected = covered(name, lasting_framework, state)
    assert same(digests(lasting_framework, target), saved) == expected
    train(lasting_framework, target, 2)
    if expected == saved.keys():
        assert digests(lasting_framework, target) == digests(lasting_framework, state)


@pytest.mark.parametrize(("name", "case"), FROM_SCRATCH)
def test_a_state_that_has_taken_no_step_can_be_loaded(
    lasting_framework: Any, prepared: Any, name: str, case: str, tmp_path: Path
) -> None:
    state = prepared(case, 1)
    target = lasting_framework.build(SUBJECT.workload(case), 2)
    lasting = QUIRKS.lasting_objects(target)
    method = new_method(name, lasting_framework)
    with opened(method, state):
        save(method, state, tmp_path / "checkpoint")
        method.load(target, tmp_path / "checkpoint")
    restored = same(digests(lasting_framework, target), digests(lasting_framework, state))
    assert restored == covered(name, lasting_framework, state)
    after = QUIRKS.lasting_objects(target)
    assert [key for key in lasting if lasting[key] is not after[key]] == []


@pytest.mark.parametrize(("name", "case"), BEHIND_A_SAVE)
def test_training_behind_a_save_does_not_change_it(
    lasting_framework: Any, prepared: Any, name: str, case: str, tmp_path: Path
) -> None:
    state, target = prepared(case, 1), prepared(case, 2)
    method = new_method(name, lasting_framework)
    with opened(method, state):
        # Later saves meet what the first save has left to be reused.
        for number in range(3):
            saved = digests(lasting_framework, state)
            save_behind_a_step(lasting_framework, method, state, tmp_path / str(number))
            method.load(target, tmp_path / str(number))
            restored = same(digests(lasting_framework, target), saved)
            assert restored >= covered(name, lasting_framework, state)


@pytest.mark.parametrize("name", SUBJECT.methods)
def test_a_failed_save_is_raised(framework: Any, name: str, tmp_path: Path) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = new_method(name, framework)
    (tmp_path / "file").touch()
    path, limit = {
        Obstacle.FILE_AS_FOLDER: (tmp_path / "file" / "checkpoint", nullcontext()),
        Obstacle.NO_FOLDER: (tmp_path / "missing" / "checkpoint", nullcontext()),
        Obstacle.NO_ROOM: (tmp_path / "checkpoint", files_of_at_most(NO_ROOM_BYTES)),
    }[QUIRKS.obstacle]
    with opened(method, state):
        with limit, pytest.raises(Exception, match=QUIRKS.obstacle_message):
            method.save(state, path).finished()
        if not is_broken(SUBJECT.methods[name], FLOAT32):
            save(method, state, tmp_path / "later")
            assert (tmp_path / "later").stat().st_size > 0


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size while a block runs."""
    # Ignoring the signal that would end the process makes the system report an error instead.
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize(("name", "failure"), FAILURES)
def test_a_declared_failure_happens_for_the_declared_reason(
    lasting_framework: Any, prepared: Any, name: str, failure: Declaration, tmp_path: Path
) -> None:
    """A release that mends the method fails here. Then adapter.toml must follow."""
    is_mixed = failure.get("precision", FLOAT32) == BF16_MIXED
    state = prepared("llm-slice-bf16-mixed" if is_mixed else "resnet50-float32", 1)
    method = new_method(name, lasting_framework)
    with opened(method, state), pytest.raises(Exception, match=".") as raised:
        save_twice_and_load(method, state, tmp_path)
    # A run compares the reason in the same way.
    reason = " ".join(f"{raised.typename}: {raised.value}".split())
    assert re.search(failure["reason"], reason)


def save_twice_and_load(method: Method[Any], state: Any, folder: Path) -> None:
    """Do what a process does that measures a method's cost."""
    for name in ("first", "second"):
        save(method, state, folder / name)
    method.load(state, folder / "first")
