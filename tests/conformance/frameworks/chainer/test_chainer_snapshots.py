"""Chainer's snapshot extension, which writes in a thread or a process behind the training."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainer.training.extensions import snapshot_writers
from declarations import has_a_race
from subject import SUBJECT, digests, new_method, opened, train, trained

import workloads
from adapters.chainer.framework import Chainer
from adapters.chainer.snapshot import ReportingWriter

BACKGROUND = ["snapshot-thread-copy", "snapshot-process"]


@pytest.mark.parametrize(
    ("name", "is_sound"), [("snapshot-thread", False), ("snapshot-thread-copy", True)]
)
def test_a_late_thread_as_shipped_writes_values_of_a_later_step(
    framework: Chainer, name: str, is_sound: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updated = threading.Event()
    write = snapshot_writers.Writer.save

    def write_late(*args: Any, **kwds: Any) -> None:
        updated.wait(60)
        write(*args, **kwds)

    monkeypatch.setattr(snapshot_writers.Writer, "save", write_late)
    workload = workloads.load("resnet50", "small")
    state, target = trained(framework, workload, 1, 2), framework.build(workload, 2)
    saved = digests(framework, state)
    method = new_method(name, framework)
    with opened(method, state):
        pending = method.save(state, tmp_path / "checkpoint")
        train(framework, state, 1)
        updated.set()
        pending.finished()
        method.load(target, tmp_path / "checkpoint")
    later, loaded = digests(framework, state), digests(framework, target)
    arrays = [
        leaf
        for leaf in saved
        if leaf.startswith(("weights/", "buffers/", "optimizer/momentum/", "rng/"))
    ]
    expected = saved if is_sound else later
    assert {leaf: loaded[leaf] for leaf in arrays} == {leaf: expected[leaf] for leaf in arrays}
    assert has_a_race(SUBJECT.methods[name]) is not is_sound


@pytest.mark.parametrize("name", ["snapshot-thread", *BACKGROUND])
def test_a_write_that_fails_behind_the_training_is_raised_at_the_end(
    framework: Chainer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwds: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", fail)
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = new_method(name, framework)
    with opened(method, state):
        pending = method.save(state, tmp_path / "checkpoint")
        pending.staged()
        train(framework, state, 1)
        with pytest.raises(OSError, match="No space left on device"):
            pending.finished()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_is_noticed(
    framework: Chainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ReportingWriter, "save", lambda *args, **kwds: os.kill(os.getpid(), signal.SIGKILL)
    )
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = new_method("snapshot-process", framework)
    with opened(method, state), pytest.raises(RuntimeError, match="ended without a report"):
        method.save(state, tmp_path / "checkpoint").finished()


@pytest.mark.parametrize("name", BACKGROUND)
def test_a_snapshot_leaves_nothing_behind(framework: Chainer, name: str, tmp_path: Path) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    before = leftovers()
    method = new_method(name, framework)
    with opened(method, state):
        # The method is closed without waiting for the save.
        method.save(state, tmp_path / "checkpoint")
    assert leftovers() == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def leftovers() -> tuple[set[str], set[str], set[str]]:
    """Return threads, child processes and descriptors."""
    children = (Path("/proc/self/task") / str(os.getpid()) / "children").read_text().split()
    threads = {thread.name for thread in threading.enumerate()}
    numbers = os.listdir("/proc/self/fd")
    descriptors = {number for number in numbers if Path(f"/proc/self/fd/{number}").exists()}
    return threads, set(children), descriptors
