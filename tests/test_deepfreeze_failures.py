"""Saves of the DeepFreeze engine that fail or are interrupted: who is told, and what is left."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deepfreeze_states import (
    SPECS,
    STEP,
    broken,
    equal,
    gated,
    interrupted,
    interrupting,
    left_behind,
    new_engine,
    new_state,
    open_files,
)

from adapters.deepfreeze import watch, writer
from adapters.deepfreeze.engine import Engine
from adapters.deepfreeze.save import Save

pytest_plugins = ["deepfreeze_fixtures"]

Ask = Callable[[Engine, Path], None]

# Errors in the background


@pytest.mark.parametrize("name", ["buffers/mean", "weights/a"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda engine, path: engine._last.finished(),
        lambda engine, path: engine.save(new_state(2), path / "next", STEP),
        lambda engine, path: engine.wait(),
    ],
    ids=["finished", "save", "close"],
)
def test_an_error_in_the_background_is_raised_by_the_next_question(
    folder: Path, name: str, ask: Ask
) -> None:
    engine = new_engine()
    # `staged` raises nothing, because not all ranks know of the error.
    engine.save(broken(new_state(1), name), folder / "checkpoint", STEP).staged()
    with pytest.raises(OSError, match="Input/output error"):
        ask(engine, folder)
    assert list(folder.iterdir()) == []
    # The error is raised once, and the engine goes on.
    engine.save(new_state(2), folder / "next", STEP).finished()
    assert equal(engine.load(folder / "next", SPECS, {}), new_state(2))


@pytest.mark.parametrize("ring_bytes", [None, 1 << 17])
def test_a_writer_that_fails_lets_nobody_wait_for_ever(
    folder: Path, ring_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, data: memoryview, offset: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write_all", fail)
    save = new_engine(ring_bytes=ring_bytes).save(new_state(1), folder / "checkpoint", STEP)
    with pytest.raises(OSError, match="No space left on device"):
        save.finished()
    assert list(folder.iterdir()) == []


def test_a_missing_parent_is_an_error(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        new_engine().save(new_state(1), folder / "missing" / "checkpoint", STEP).finished()


def test_an_error_that_nobody_was_told_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine()
    engine.save(broken(new_state(1), "weights/a"), folder / "checkpoint", STEP).join()
    del engine
    gc.collect()
    assert (
        f"{folder / 'checkpoint'} was not saved, and nothing has asked for the outcome: "
        "[Errno 5] Input/output error"
    ) in caplog.text


def test_an_error_that_somebody_was_told_is_not_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine()
    with pytest.raises(OSError, match="Input/output error"):
        engine.save(broken(new_state(1), "weights/a"), folder / "checkpoint", STEP).finished()
    del engine
    gc.collect()
    assert caplog.text == ""


# Interrupts


def test_an_interrupt_while_waiting_for_the_save_before_leaves_that_one_alone(folder: Path) -> None:
    engine = new_engine()
    gate, sources = gated(new_state(1), "weights/a")
    engine.save(sources, folder / "first", STEP)
    for wait in (engine.wait, lambda: engine.save(new_state(2), folder / "never", STEP)):
        with interrupted():
            wait()
    with ThreadPoolExecutor() as pool:
        second = pool.submit(engine.save, new_state(2), folder / "second", STEP)
        time.sleep(0.1)
        assert not second.done(), "the first one still needs the arena"
        gate.open.set()
        second.result(30).finished()
    assert sorted(path.name for path in folder.iterdir()) == ["first", "second"]
    assert equal(engine.load(folder / "first", SPECS, {}), new_state(1))
    assert equal(engine.load(folder / "second", SPECS, {}), new_state(2))


def test_an_interrupt_of_the_help_is_raised_there_and_costs_the_checkpoint(folder: Path) -> None:
    engine = new_engine()
    gate, sources = gated(new_state(1), "weights/a")
    save = engine.save(interrupting(sources, "weights/half"), folder / "checkpoint", STEP)
    assert gate.reached.wait(30)
    with pytest.raises(KeyboardInterrupt):
        save.staged()
    gate.open.set()
    # It is raised once.
    engine.wait()
    assert list(folder.iterdir()) == []


def test_an_interrupt_before_a_save_begins_leaves_nothing_to_wait_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(save: Save) -> None:
        raise KeyboardInterrupt

    engine = new_engine()
    with monkeypatch.context() as patch:
        patch.setattr(Save, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.save(new_state(1), folder / "first", STEP)
    engine.cancel(KeyboardInterrupt())
    with pytest.raises(FileNotFoundError):
        engine.load(folder / "first", SPECS, {})
    engine.save(new_state(2), folder / "second", STEP).finished()
    assert [path.name for path in folder.iterdir()] == ["second"]


@pytest.mark.parametrize("is_started", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), RuntimeError("can't start new thread")],
    ids=["interrupt", "no-thread"],
)
def test_no_thread_waits_for_ever_if_one_does_not_start(
    folder: Path,
    error: BaseException,
    number: int,
    is_started: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first two threads are writers, the third one is the background."""
    engine = new_engine()
    start = threading.Thread.start
    started = 0

    def fail(thread: threading.Thread) -> None:
        nonlocal started
        started += 1
        if started != number or is_started:
            start(thread)
        if started == number:
            raise error

    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(type(error)):
            engine.save(new_state(1), folder / "first", STEP).finished()
    # It is raised once.
    engine.wait()
    assert left_behind() == []
    assert open_files() <= before
    assert [path.name for path in folder.iterdir()] in ([], ["first"])
    engine.save(new_state(2), folder / "second", STEP).finished()
    assert equal(engine.load(folder / "second", SPECS, {}), new_state(2))
    # The first save goes on if the background had taken over.
    if (folder / "first").exists():
        assert (number, is_started) == (3, True)
        assert equal(engine.load(folder / "first", SPECS, {}), new_state(1))


@pytest.mark.parametrize("world", [1, 2])
def test_an_interrupt_beside_an_error_of_before_leaves_nothing_that_copies(
    folder: Path, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank of several that is told of the save before has started the next one.

    It does not get that save, and cannot wait for it.
    """
    engine = new_engine(0, world)
    monkeypatch.setattr(watch, "ABSENT_S", 0.1)
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)
    engine.save(broken(new_state(1), "weights/half"), folder / "first", STEP).join()
    gate, sources = gated(new_state(2), "weights/a")

    def interrupt(save: Save) -> None:
        gate.open.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(Save, "staged", interrupt)
    with pytest.raises(KeyboardInterrupt if world > 1 else OSError):
        engine.save(sources, folder / "second", STEP)
    assert left_behind() == []
    engine.wait()
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == []
