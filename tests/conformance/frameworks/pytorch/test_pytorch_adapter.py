"""The parts of the PyTorch adapter that no other framework has."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch
from subject import SUBJECT, new_method, opened

import workloads
from adapters.base import DirectIo, Entry, Place
from adapters.pytorch import strategies
from adapters.pytorch.framework import PyTorch
from workloads import Role


def test_bytes_of_a_wrong_size_cannot_be_assigned(framework: PyTorch) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    for size in (1, 7, 9):
        with pytest.raises(ValueError, match="structure"):
            framework.assign(state, {"position/step": memoryview(bytes(size))})


@pytest.mark.parametrize("zipped", [True, False])
def test_memory_that_tensors_share_is_one_entry(
    framework: PyTorch, zipped: bool, tmp_path: Path
) -> None:
    rows = torch.zeros(4, 2)
    torch.save(
        {"model": {"all": rows, "first": rows[0]}},
        tmp_path / "file",
        _use_new_zipfile_serialization=zipped,
    )
    method = new_method("torch-save" if zipped else "torch-save-legacy", framework)
    assert list(method.entries(tmp_path / "file")) == [
        Entry("file", "model.all", Role.WEIGHT, 32, 32)
    ]


def test_the_tuned_asynchronous_save_leaves_nothing_behind(
    framework: PyTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The daemon reads the variable.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    before = leftovers()
    method = new_method("dcp-async-tuned", framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
    assert leftovers() <= before


def leftovers() -> set[str]:
    children = (Path("/proc/self/task") / str(os.getpid()) / "children").read_text().split()
    temporary = Path(tempfile.gettempdir())
    return {
        *children,
        *map(str, temporary.glob("pymp-*")),
        *map(str, Path("/dev/shm").glob("torch_*")),
    }


def test_every_strategy_is_declared() -> None:
    assert set(SUBJECT.strategies) == set(strategies.STRATEGIES)


def test_ranks_without_a_known_strategy_are_refused(tmp_path: Path) -> None:
    place = Place(
        rank=0,
        world=2,
        device="cpu",
        temporary=tmp_path,
        io=DirectIo(False, 0, 0),
        memory=tmp_path / "memory",
    )
    with pytest.raises(ValueError, match="ddp"):
        strategies.make(place, torch.device("cpu"))
