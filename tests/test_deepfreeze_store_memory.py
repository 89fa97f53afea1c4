"""The DeepFreeze store's level in memory: when it counts, and what it outlives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from deepfreeze_stores import (
    ROOT,
    Digests,
    digests,
    names,
    restored,
    run_victim,
    save_that_breaks_off,
)
from deepfreeze_victim import advance, opened

from adapters.base import DirectIo
from adapters.deepfreeze.arena import SharedArena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.store import HOME_FILE, Store
from adapters.deepfreeze.tensor import Spec
from adapters.deepfreeze.writer import FileWriter

pytest_plugins = ["deepfreeze_fixtures"]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_memory_outlives_the_process_and_the_restore_says_that_it_was_memory(
    first_store: Path, folder: Path, memory: Path, expected: list[Digests]
) -> None:
    """The process is killed before the disk has the step of which memory has a snapshot."""
    attempt = shutil.copytree(first_store, folder / "store")
    (attempt / HOME_FILE).write_text("a name")
    inject = ["-e", "trace=ftruncate,fsync", "-e", "inject=fsync:signal=KILL:when=1"]
    assert run_victim(attempt, *inject, memory=memory).returncode in (-9, 137)
    assert restored(attempt, memory=str(memory)) == ("memory", 2, expected[2])
    assert restored(attempt) == ("directory", 1, expected[1])


@pytest.mark.parametrize(("arenas", "level"), [(1, "directory"), (2, "memory")])
def test_memory_counts_only_while_no_snapshot_is_being_taken_or_with_a_second_arena(
    arenas: int, level: str, folder: Path, memory: Path, expected: list[Digests]
) -> None:
    options = {"memory": str(memory), "arenas": arenas}
    framework, method, state = opened(folder, 1, options=options)
    Store(method, folder).save(state).finished()
    assert restored(folder, **options) == ("memory", 1, expected[1])
    advance(framework, state)
    # This save never begins.
    with pytest.raises(FileNotFoundError):
        method.save(state, folder / "missing" / "checkpoint").finished()
    assert restored(folder, **options) == ("memory", 1, expected[1])
    with pytest.raises(OSError, match="lost"):
        save_that_breaks_off(method, state, folder / "checkpoint")
    assert restored(folder, **options) == (level, 1, expected[1])


def test_memory_keeps_the_newest_step_that_a_failing_disk_refused(
    folder: Path, memory: Path, expected: list[Digests], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process does not begin with the arena that it was just restored from."""

    def be_full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    options = {"memory": str(memory), "arenas": 2}
    framework, method, state = opened(folder, 0, options=options)
    Store(method, folder)
    finish = FileWriter.finish
    with monkeypatch.context() as patch:
        for step in (1, 2, 3):
            advance(framework, state)
            is_full = step == 3
            patch.setattr(FileWriter, "finish", be_full if is_full else finish)
            save = method.save(state, folder / f"step-{step:010d}")
            with pytest.raises(OSError, match="No space left") if is_full else nullcontext():
                save.finished()
    assert restored(folder, **options) == ("memory", 3, expected[3])
    with pytest.raises(OSError, match="lost"):
        save_that_breaks_off(method, state, folder / "checkpoint")
    assert restored(folder, **options) == ("memory", 3, expected[3])
    _, method, state = opened(folder, 4, options=options)
    with pytest.raises(OSError, match="lost"):
        save_that_breaks_off(method, state, folder / "checkpoint")
    assert restored(folder, **options) == ("memory", 3, expected[3])


def test_memory_of_another_directory_does_not_count(
    folder: Path, memory: Path, expected: list[Digests]
) -> None:
    options = {"memory": str(memory)}
    for name in ("old", "new"):
        (folder / name).mkdir()
    _, method, state = opened(folder, 3, options=options)
    Store(method, folder / "old").save(state).finished()
    assert restored(folder / "old", **options) == ("memory", 3, expected[3])
    with pytest.raises(FileNotFoundError, match="holds a checkpoint of another directory"):
        restored(folder / "new", **options)
    # A directory that takes the path of another one later is another directory too.
    shutil.rmtree(folder / "old")
    (folder / "old").mkdir()
    with pytest.raises(FileNotFoundError, match="holds a checkpoint of another directory"):
        restored(folder / "old", **options)


def test_a_memory_of_another_state_is_skipped_and_the_restore_says_why(
    folder: Path, memory: Path, expected: list[Digests]
) -> None:
    framework, method, state = opened(folder, 1, options={"memory": str(memory)})
    store = Store(method, folder)
    store.save(state).finished()
    save_another_state(memory / "0-of-1", folder / "other", method.engine.home)
    outcome = store.restore(state)
    assert (outcome.level, outcome.step) == ("directory", 1)
    assert digests(framework, state) == expected[1]
    assert "is not in" in outcome.skipped[0]


def save_another_state(arena: Path, path: Path, home: str) -> None:
    """Save a state of step 9 with another tensor, through an arena."""
    spec = Spec("weights/other", "uint8", (5000,))
    ranks = Ranks(0, 1, "other")
    engine = Engine(ranks, DirectIo(True, 1 << 16, 1), {}, [SharedArena(arena)])
    engine.home = home
    engine.prepare([spec])
    engine.save({spec.name: np.zeros(spec.size_bytes, np.uint8)}, path, 9).finished()


DYING_SNAPSHOT = """
import os, signal, sys
from pathlib import Path
from deepfreeze_victim import advance, opened
from adapters.deepfreeze.store import Store
from adapters.deepfreeze.tensor import Late

def die(tensor):
    os.kill(os.getpid(), signal.SIGKILL)

folder, memory, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
framework, method, state = opened(folder, 0, options={"memory": memory, "arenas": 2})
for step in range(1, last):
    advance(framework, state)
    Store(method, folder).save(state).finished()
sources = {**method.sources(state), method.tensors[-1].name: Late(die, None)}
method.engine.save(sources, folder / "never", last).finished()
"""


@pytest.mark.parametrize("last", [2, 3])
def test_a_process_killed_while_a_snapshot_is_taken_leaves_the_other_arena(
    last: int, folder: Path, memory: Path, expected: list[Digests]
) -> None:
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", DYING_SNAPSHOT, str(folder), str(memory), str(last)]
    assert subprocess.run(command, env=environment, timeout=60).returncode == -signal.SIGKILL
    for name in names(folder):
        shutil.rmtree(folder / name)
    outcome = restored(folder, memory=str(memory), arenas=2)
    assert outcome == ("memory", last - 1, expected[last - 1])
