"""The DeepFreeze store in a directory: which checkpoint it restores, and which ones it keeps."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from deepfreeze_states import interrupted
from deepfreeze_stores import Digests, digests, names, restored
from deepfreeze_victim import advance, opened

from adapters.deepfreeze import writer
from adapters.deepfreeze.store import Store
from adapters.deepfreeze.writer import FileWriter
from adapters.raw.framework import Raw, State
from adapters.shared import directio
from adapters.shared.directio import write_all

pytest_plugins = ["deepfreeze_fixtures"]

# Retention


def test_the_last_few_are_kept_and_the_newest_is_restored(
    folder: Path, expected: list[Digests]
) -> None:
    framework, method, state = opened(folder, 0)
    store = Store(method, folder, keep=2)
    for step in (1, 2, 3):
        advance(framework, state)
        pending = store.save(state)
        pending.staged()
        durable = [name for name in names(folder) if not name.startswith(".")]
        assert len(durable) >= min(step - 1, 2), "none goes before a newer one is durable"
    pending.finished()
    assert names(folder) == ["step-0000000002", "step-0000000003"]
    assert restored(folder) == ("directory", 3, expected[3])


def test_a_store_that_keeps_nothing_is_refused(folder: Path) -> None:
    _, method, _ = opened(folder, 0)
    with pytest.raises(ValueError, match="must keep at least one checkpoint, but keep is 0"):
        Store(method, folder, keep=0)


def test_what_was_just_saved_stays_beside_damaged_checkpoints_of_later_steps(
    folder: Path, expected: list[Digests]
) -> None:
    framework, method, state = opened(folder, 1)
    store = Store(method, folder, keep=1)
    store.save(state).finished()
    shutil.copytree(folder / "step-0000000001", folder / "step-0000000003")
    os.truncate(folder / "step-0000000003" / "model.safetensors", 5000)
    assert store.restore(state).step == 1
    advance(framework, state)
    store.save(state).finished()
    assert names(folder) == ["step-0000000002", "step-0000000003"]
    assert restored(folder) == ("directory", 2, expected[2])
    advance(framework, state)
    store.save(state).finished()
    assert names(folder) == ["step-0000000003.1"], (
        "the damaged one goes once training has passed it"
    )


@pytest.mark.parametrize("asks", [True, False], ids=["finished", "close"])
def test_an_old_checkpoint_that_cannot_be_removed_costs_no_new_one(
    folder: Path, asks: bool, expected: list[Digests], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(13, "Permission denied")

    framework, method, state = opened(folder, 0)
    store = Store(method, folder, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        # Each save waits for the one before, and removes what is older than that.
        for _ in range(3):
            advance(framework, state)
            pending = store.save(state)
        ask = pending.finished if asks else store.close
        with pytest.raises(OSError, match="Permission denied"):
            ask()
    store.close()
    assert restored(folder) == ("directory", 3, expected[3])


def test_a_directory_of_a_store_is_as_durable_as_what_is_in_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(directio, "sync_directory", flushed.append)
    _, method, _ = opened(folder, 0)
    Store(method, folder / "runs" / "first")
    assert set(flushed) == {folder, folder / "runs"}


# Restores that skip a checkpoint


def saved_twice(folder: Path) -> tuple[Raw, State, Store[State]]:
    """Return a framework, its state, and the store with checkpoints of steps 1 and 2."""
    framework, method, state = opened(folder, 1)
    store = Store(method, folder)
    store.save(state).finished()
    advance(framework, state)
    store.save(state).finished()
    return framework, state, store


def test_an_empty_store_says_so(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        restored(folder)


def test_a_damaged_checkpoint_is_skipped_and_the_restore_says_why(
    folder: Path, expected: list[Digests]
) -> None:
    framework, state, store = saved_twice(folder)
    file = folder / "step-0000000002" / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    outcome = store.restore(state)
    assert (outcome.step, outcome.path.name) == (1, "step-0000000001")
    assert "step-0000000002/model.safetensors is cut off" in outcome.skipped[0]
    # The next save is at the step of the damaged one.
    advance(framework, state)
    store.save(state).finished()
    assert names(folder) == ["step-0000000001", "step-0000000002.1"], "both are complete"
    assert restored(folder) == ("directory", 2, expected[2])


def test_a_checkpoint_that_cannot_be_read_is_skipped_and_the_restore_says_why(
    folder: Path, expected: list[Digests], monkeypatch: pytest.MonkeyPatch
) -> None:
    framework, state, store = saved_twice(folder)
    inode = (folder / "step-0000000002" / "model.safetensors").stat().st_ino
    preadv = os.preadv

    def fail(descriptor: int, *arguments: Any) -> int:
        if os.fstat(descriptor).st_ino == inode:
            raise OSError(5, "Input/output error")
        return preadv(descriptor, *arguments)

    monkeypatch.setattr(os, "preadv", fail)
    outcome = store.restore(state)
    assert (outcome.step, digests(framework, state)) == (1, expected[1])
    assert re.fullmatch(
        r".*Input/output error, in tensor \w+/.*step-0000000002/model.safetensors'",
        outcome.skipped[0],
    )


def test_a_checkpoint_that_could_not_be_read_for_a_moment_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be good, and takes the place of no other one."""
    framework, state, store = saved_twice(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", _refuse)
        with pytest.raises(FileNotFoundError, match="Too many open files"):
            store.restore(state)
    assert names(folder) == ["step-0000000001", "step-0000000002"]
    advance(framework, state)
    store.save(state).finished()
    assert names(folder) == ["step-0000000001", "step-0000000002", "step-0000000003"]


def _refuse(*arguments: Any) -> int:
    raise OSError(24, "Too many open files")


# Restores by several ranks


def test_ranks_agree_on_what_they_restore(
    folder: Path, expected: list[Digests], monkeypatch: pytest.MonkeyPatch
) -> None:
    framework, method, state = opened(folder, 1)
    store = Store(method, folder)
    store.save(state).finished()
    advance(framework, state)
    store.save(state).finished()
    # Another rank cannot read the newest one. A restore goes on after such an error.
    answers = iter([False, True, True, True])
    monkeypatch.setattr(method.peers, "on_all", lambda is_well: is_well and next(answers))
    outcome = store.restore(state)
    assert (outcome.step, digests(framework, state)) == (1, expected[1])
    assert outcome.skipped == (f"{folder / 'step-0000000002'} is not complete on another rank",)


@pytest.mark.parametrize("is_own", [True, False], ids=["here", "on-another-rank"])
def test_an_error_after_which_one_rank_cannot_go_on_ends_the_restore_on_all(
    folder: Path, is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework, method, state = opened(folder, 0)
    store = Store(method, folder)
    for _ in range(2):
        advance(framework, state)
        store.save(state).finished()
    asked: list[bool] = []

    def load(state: State, path: Path) -> None:
        if is_own:
            raise MemoryError("no room")

    def on_all(is_well: bool) -> bool:
        asked.append(is_well)
        # Another rank was not well, if this one was.
        return is_well and is_own

    monkeypatch.setattr(method, "load", load)
    monkeypatch.setattr(method.peers, "on_all", on_all)
    message = "no room" if is_own else "another rank could not load .*step-0000000002"
    with pytest.raises(MemoryError if is_own else RuntimeError, match=message):
        store.restore(state)
    assert asked == ([False, False] if is_own else [True, True]), (
        "both questions go to all ranks, and no further checkpoint is tried"
    )


# Errors of a save


def test_an_error_that_nobody_was_told_is_raised_by_the_next_save(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    _, method, state = opened(folder, 1)
    store = Store(method, folder)
    with monkeypatch.context() as patch:
        patch.setattr(FileWriter, "finish", fail)
        store.save(state)
        with pytest.raises(OSError, match="Input/output error"):
            store.save(state)
    store.save(state).finished()
    assert names(folder) == ["step-0000000001"]


def test_an_error_that_somebody_was_told_does_not_cost_the_next_save(folder: Path) -> None:
    _, method, state = opened(folder, 1)
    store = Store(method, folder)
    blocker = folder / f".step-0000000001.{method.engine.session}-1.partial"
    blocker.touch()
    with pytest.raises(FileExistsError):
        store.save(state).finished()
    store.save(state).finished()
    assert "step-0000000001" in names(folder)


def test_an_interrupted_synchronous_save_does_not_read_the_state_any_more(
    folder: Path, expected: list[Digests], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_slowly(descriptor: int, data: memoryview, offset: int) -> None:
        time.sleep(0.3)
        write_all(descriptor, data, offset)

    framework, method, state = opened(folder, 1, options={"synchronous": True})
    store = Store(method, folder)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_all", write_slowly)
        with interrupted():
            store.save(state)
        advance(framework, state)
    method.close()
    assert names(folder) == []
    store.save(state).finished()
    assert restored(folder) == ("directory", 2, expected[2])
