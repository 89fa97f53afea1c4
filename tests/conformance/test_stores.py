"""Every store restores its newest checkpoint bit by bit, and removes the older ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from subject import SUBJECT, covered, digest, digests, opened_store, same, train

from adapters.base import NothingToRestore, Store

CASE = SUBJECT.cases[0]
EACH_CASE = [(name, case) for name in SUBJECT.stores for case in SUBJECT.cases]

each_store = pytest.mark.parametrize("name", SUBJECT.stores)


def save(store: Store[Any], state: Any, step: int) -> None:
    """Save as a script does that waits for the save."""
    pending = store.save(state, step)
    pending.staged()
    pending.finished()


def files_below(folder: Path) -> dict[str, str]:
    """Return the digest of every file, by its path below the folder."""
    return {
        str(path.relative_to(folder)): digest(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(("name", "case"), EACH_CASE)
def test_the_newest_checkpoint_is_restored_into_another_state(
    lasting_framework: Any, prepared: Any, name: str, case: str, tmp_path: Path
) -> None:
    state = prepared(case, 1)
    with opened_store(name, lasting_framework, state, tmp_path) as store:
        save(store, state, 1)
        train(lasting_framework, state, 1)
        save(store, state, 2)
        saved = digests(lasting_framework, state)
        train(lasting_framework, state, 1)
        target = prepared(case, 2)
        assert store.restore_latest(target) == 2
    expected = covered(name, lasting_framework, target)
    assert same(digests(lasting_framework, target), saved) == expected


@each_store
def test_another_process_finds_the_newest_checkpoint(
    lasting_framework: Any, prepared: Any, name: str, tmp_path: Path
) -> None:
    state = prepared(CASE, 1)
    with opened_store(name, lasting_framework, state, tmp_path) as store:
        save(store, state, 1)
        train(lasting_framework, state, 1)
        save(store, state, 2)
    saved = digests(lasting_framework, state)
    target = prepared(CASE, 2)
    with opened_store(name, lasting_framework, target, tmp_path) as store:
        assert store.restore_latest(target) == 2
        restored = same(digests(lasting_framework, target), saved)
        assert restored == covered(name, lasting_framework, target)
        train(lasting_framework, target, 1)
        saved = digests(lasting_framework, target)
        save(store, target, 3)
    target = prepared(CASE, 2)
    with opened_store(name, lasting_framework, target, tmp_path) as store:
        assert store.restore_latest(target) == 3
    restored = same(digests(lasting_framework, target), saved)
    assert restored >= covered(name, lasting_framework, target)


@each_store
def test_an_empty_folder_has_nothing_to_restore(
    lasting_framework: Any, prepared: Any, name: str, tmp_path: Path
) -> None:
    state = prepared(CASE, 1)
    before = digests(lasting_framework, state)
    with (
        opened_store(name, lasting_framework, state, tmp_path) as store,
        pytest.raises(NothingToRestore, match=str(tmp_path)),
    ):
        store.restore_latest(state)
    assert digests(lasting_framework, state) == before


@each_store
def test_a_store_keeps_as_many_checkpoints_as_declared(
    lasting_framework: Any, prepared: Any, name: str, tmp_path: Path
) -> None:
    state = prepared(CASE, 1)
    with opened_store(name, lasting_framework, state, tmp_path) as store:
        save(store, state, 1)
        first = files_below(tmp_path)
        train(lasting_framework, state, 1)
        save(store, state, 2)
    kept = first.items() & files_below(tmp_path).items()
    assert kept == (first.items() if SUBJECT.stores[name]["options"]["keep"] > 1 else set())
