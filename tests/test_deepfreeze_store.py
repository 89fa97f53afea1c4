"""The DeepFreeze store: which checkpoint comes back, after whatever has happened to the process or the disk."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepfreeze_states import interrupted
from deepfreeze_victim import advance, opened

from adapters.base import DirectIo
from adapters.deepfreeze import writer
from adapters.deepfreeze.arena import SharedArena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.store import HOME_FILE, Store
from adapters.deepfreeze.tensor import Bytes, Late, Spec
from adapters.deepfreeze.writer import FileWriter
from adapters.raw.deepfreeze import DeepFreeze
from adapters.raw.framework import Raw, State
from adapters.shared import directio
from adapters.shared.directio import write_all

ROOT = Path(__file__).resolve().parents[1]
# the calls that change the disk, each thread's counted by itself, and which steps may be left after
# them
KILLED_AT = {
    "pwrite64": [1],
    "ftruncate": [1],
    "fsync": [1, 2],
    "rename": [1],
    "unlinkat": [2],
    "rmdir": [2],
}

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

Digests = dict[str, str]


def digests(framework: Raw, state: State) -> Digests:
    return {leaf.name: hashlib.sha256(leaf.data).hexdigest() for leaf in framework.leaves(state)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != HOME_FILE)


@pytest.fixture
def folder(scratch: Path, request: pytest.FixtureRequest) -> Path:
    path = scratch / request.node.name
    path.mkdir()
    return path


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder of a file system in memory."""
    path = Path("/dev/shm") / f"deepfreeze-test-{os.getpid()}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def expected(scratch: Path) -> list[Digests]:
    """The state after each number of steps."""
    framework, _, state = opened(scratch, 0)
    found = [digests(framework, state)]
    for _ in range(4):
        advance(framework, state)
        found.append(digests(framework, state))
    return found


@pytest.fixture(scope="module")
def first(scratch: Path) -> Path:
    """A store with a checkpoint of the first step."""
    folder = scratch / "first"
    _, method, state = opened(folder, 1)
    Store(method, folder).save(state).finished()
    return folder


def restored(folder: Path, **options: object) -> tuple[str, int, Digests]:
    """Restore in a state that is none of the saved ones: from which level, which step, and what."""
    framework, method, state = opened(folder, 0, seed=9, options=options)
    found = Store(method, folder).restore(state)
    return found.level, found.step, digests(framework, state)


def run_victim(
    folder: Path, *strace: str, memory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Let another process save the second step and keep nothing else, under strace."""
    folders = [str(folder), *([str(memory)] if memory else [])]
    command = [
        "strace",
        "-f",
        "-qq",
        *strace,
        sys.executable,
        str(Path(__file__).with_name("deepfreeze_victim.py")),
        *folders,
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def disturbed(folder: Path, call: str, fault: str, number: int) -> subprocess.CompletedProcess[str]:
    """Run the victim with a fault in one of its calls."""
    return run_victim(
        folder,
        "-o",
        os.devnull,
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:{fault}:when={number}",
    )


@needs_strace
@pytest.mark.parametrize(("call", "outcome"), KILLED_AT.items())
def test_a_whole_checkpoint_is_there_whenever_the_process_is_killed(
    call: str, outcome: list[int], first: Path, folder: Path, expected: list[Digests]
) -> None:
    steps = []
    for number in itertools.count(1):
        attempt = shutil.copytree(first, folder / str(number))
        killed = disturbed(attempt, call, "signal=KILL", number).returncode != 0
        level, step, found = restored(attempt)
        assert (level, found) == ("directory", expected[step])
        assert all(name.startswith("step-") for name in names(attempt)), (
            "what was left unfinished is removed"
        )
        if not killed:  # no thread makes so many of these calls
            break
        steps.append(step)
    assert sorted(set(steps)) == outcome
    assert step == 2


@needs_strace
@pytest.mark.parametrize("call", KILLED_AT)
def test_a_disk_that_fails_is_told_and_no_checkpoint_is_lost(
    call: str, first: Path, folder: Path, expected: list[Digests]
) -> None:
    for number in itertools.count(1):
        attempt = shutil.copytree(first, folder / str(number))
        done = disturbed(attempt, call, "error=ENOSPC", number)
        assert (done.returncode, done.stderr) == (0, "")
        if not done.stdout:
            break
        assert done.stdout == "raised No space left on device\n"
        if call in ("pwrite64", "ftruncate"):
            assert names(attempt) == ["step-0000000001"], "nothing unfinished is left"
        _, step, found = restored(attempt)
        assert found == expected[step]
    assert number > 1
    assert restored(attempt) == ("directory", 2, expected[2])


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


def test_a_damaged_checkpoint_is_skipped_and_the_restore_says_why(
    folder: Path, expected: list[Digests]
) -> None:
    framework, method, state = opened(folder, 1)
    store = Store(method, folder)
    store.save(state).finished()
    advance(framework, state)
    store.save(state).finished()
    file = folder / "step-0000000002" / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    found = store.restore(state)
    assert (found.step, found.path.name) == (1, "step-0000000001")
    assert "step-0000000002/model.safetensors is cut off" in found.skipped[0]
    advance(framework, state)
    store.save(state).finished()  # at the step of the damaged one
    assert names(folder) == ["step-0000000001", "step-0000000002.1"], "two that are whole"
    assert restored(folder) == ("directory", 2, expected[2])


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


def test_a_checkpoint_that_cannot_be_read_is_skipped_and_the_restore_says_why(
    folder: Path, expected: list[Digests], monkeypatch: pytest.MonkeyPatch
) -> None:
    framework, method, state = opened(folder, 1)
    store = Store(method, folder)
    store.save(state).finished()
    advance(framework, state)
    store.save(state).finished()
    inode = (folder / "step-0000000002" / "model.safetensors").stat().st_ino
    preadv = os.preadv

    def fail(descriptor: int, *arguments: Any) -> int:
        if os.fstat(descriptor).st_ino == inode:
            raise OSError(5, "Input/output error")
        return preadv(descriptor, *arguments)

    monkeypatch.setattr(os, "preadv", fail)
    found = store.restore(state)
    assert (found.step, digests(framework, state)) == (1, expected[1])
    assert re.fullmatch(
        r".*Input/output error, in tensor \w+/.*step-0000000002/model.safetensors'",
        found.skipped[0],
    )


def test_a_memory_of_another_state_is_skipped_and_the_restore_says_why(
    folder: Path, memory: Path, expected: list[Digests]
) -> None:
    framework, method, state = opened(folder, 1, options={"memory": str(memory)})
    store = Store(method, folder)
    store.save(state).finished()
    other = [Spec("weights/other", "uint8", (5000,))]
    arena = SharedArena(memory / "0-of-1")
    engine = Engine(Ranks(0, 1, "other"), DirectIo(True, 1 << 16, 1), {}, [arena])
    engine.home = method.engine.home
    engine.prepare(other)
    engine.save(
        {spec.name: np.zeros(spec.size_bytes, np.uint8) for spec in other}, folder / "other", 9
    ).finished()
    found = store.restore(state)
    assert (found.level, found.step, digests(framework, state)) == ("directory", 1, expected[1])
    assert "is not in" in found.skipped[0]


def test_ranks_agree_on_what_they_restore(
    folder: Path, expected: list[Digests], monkeypatch: pytest.MonkeyPatch
) -> None:
    framework, method, state = opened(folder, 1)
    store = Store(method, folder)
    store.save(state).finished()
    advance(framework, state)
    store.save(state).finished()
    # another rank cannot read the newest, which is an error that a restore goes on from
    answers = iter([False, True, True])
    monkeypatch.setattr(method.peers, "on_all", lambda well: well and next(answers))
    found = store.restore(state)
    assert (found.step, digests(framework, state)) == (1, expected[1])
    assert found.skipped == (f"{folder / 'step-0000000002'} is not complete on another rank",)


def test_an_error_that_nobody_asked_for_is_raised_by_the_next_save(
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


def test_an_error_that_was_told_does_not_cost_the_next_save(folder: Path) -> None:
    _, method, state = opened(folder, 1)
    store = Store(method, folder)
    blocker = folder / f".step-0000000001.{method.engine.session}-1.partial"
    blocker.touch()
    with pytest.raises(FileExistsError):
        store.save(state).finished()
    store.save(state).finished()
    assert "step-0000000001" in names(folder)


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
        for _ in range(3):
            advance(framework, state)
            pending = store.save(state)  # which waits for the one before and removes what is older
        with pytest.raises(OSError, match="Permission denied"):
            pending.finished() if asks else store.close()
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


@pytest.mark.parametrize("own", [True, False], ids=["here", "on-another-rank"])
def test_what_one_rank_cannot_bear_ends_the_restore_on_all_of_them(
    folder: Path, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework, method, state = opened(folder, 0)
    store = Store(method, folder)
    for _ in range(2):
        advance(framework, state)
        store.save(state).finished()
    agreed: list[bool] = []

    def load(state: State, path: Path) -> None:
        if own:
            raise MemoryError("no room")

    def on_all(well: bool) -> bool:
        agreed.append(well)
        return well and own  # another rank was not well, if this one was

    monkeypatch.setattr(method, "load", load)
    monkeypatch.setattr(method.peers, "on_all", on_all)
    with pytest.raises(
        MemoryError if own else RuntimeError,
        match="no room" if own else "another rank could not load .*step-0000000002",
    ):
        store.restore(state)
    assert agreed == ([False, False] if own else [True, True]), (
        "both questions are put to all ranks, and no further checkpoint is tried"
    )


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
    shutil.rmtree(folder / "old")
    (folder / "old").mkdir()
    with pytest.raises(FileNotFoundError, match="holds a checkpoint of another directory"):
        restored(folder / "old", **options)


def test_an_interrupted_synchronous_save_reads_the_state_no_more(
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


def test_an_empty_store_says_so(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        restored(folder)


def test_memory_outlives_the_process_and_says_that_it_was_memory(
    first: Path, folder: Path, memory: Path, expected: list[Digests]
) -> None:
    """The disk fails after the snapshot was taken; the process is gone; the memory has the step that the disk has not."""
    attempt = shutil.copytree(first, folder / "store")
    (attempt / HOME_FILE).write_text("a name")
    inject = ["-e", "trace=ftruncate,fsync", "-e", "inject=fsync:signal=KILL:when=1"]
    assert run_victim(attempt, "-o", os.devnull, *inject, memory=memory).returncode in (-9, 137)
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
    with pytest.raises(FileNotFoundError):
        method.save(state, folder / "missing" / "checkpoint").finished()  # never begins
    assert restored(folder, **options) == ("memory", 1, expected[1])
    with pytest.raises(OSError, match="lost"):
        engine_save_that_breaks_off(method, state, folder / "checkpoint")
    assert restored(folder, **options) == (level, 1, expected[1])


def engine_save_that_breaks_off(method: DeepFreeze, state: State, path: Path) -> None:
    """Save a state whose last tensor cannot be copied."""

    def lost(tensor: None) -> Bytes:
        raise OSError("the device is lost")

    sources = {**method.sources(state), method.tensors[-1].name: Late(lost, None)}
    method.engine.save(sources, path, method.step(state)).finished()


def test_memory_keeps_the_newest_step_that_a_failing_disk_refused(
    folder: Path, memory: Path, expected: list[Digests], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a new process does not begin with the arena that it was just restored from."""

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    options = {"memory": str(memory), "arenas": 2}
    framework, method, state = opened(folder, 0, options=options)
    Store(method, folder)
    with monkeypatch.context() as patch:
        for step in (1, 2, 3):
            advance(framework, state)
            patch.setattr(FileWriter, "finish", full if step == 3 else FileWriter.finish)
            save = method.save(state, folder / f"step-{step:010d}")
            with pytest.raises(OSError, match="No space left") if step == 3 else nullcontext():
                save.finished()
    assert restored(folder, **options) == ("memory", 3, expected[3])
    with pytest.raises(OSError, match="lost"):
        engine_save_that_breaks_off(method, state, folder / "checkpoint")
    assert restored(folder, **options) == ("memory", 3, expected[3])
    _, method, state = opened(folder, 4, options=options)
    with pytest.raises(OSError, match="lost"):
        engine_save_that_breaks_off(method, state, folder / "checkpoint")
    assert restored(folder, **options) == ("memory", 3, expected[3])


DYING_SNAPSHOT = """
import os, signal, sys
from pathlib import Path
from deepfreeze_victim import advance, opened
from adapters.deepfreeze.store import HOME_FILE, Store
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
    assert restored(folder, memory=str(memory), arenas=2) == (
        "memory",
        last - 1,
        expected[last - 1],
    )
