"""DeepFreeze for a training script, whose state is a dictionary of numpy arrays."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.deepfreeze.errors import Unfitting
from adapters.deepfreeze.script import DeepFreeze


@pytest.mark.parametrize("in_memory", [False, True])
def test_arrays_that_the_dictionary_lacks_are_not_lost_without_a_word(
    tmp_path: Path, in_memory: bool
) -> None:
    memory = tmp_path / "memory" if in_memory else None
    saved = {"model.weight": np.arange(5.0), "optimizer.0.step": np.ones(())}
    freezer = DeepFreeze(saved, memory)
    freezer.save(saved, tmp_path / "checkpoint", 3).finished()
    without_slots = {"model.weight": np.zeros(5)}
    with pytest.raises(Unfitting, match=r"1 arrays .*such as optimizer\.0\.step; make them"):
        DeepFreeze(without_slots, memory).load(without_slots, tmp_path / "checkpoint")
    assert not without_slots["model.weight"].any()


def test_a_path_may_be_text(tmp_path: Path) -> None:
    saved = {"model.weight": np.arange(5.0)}
    path = str(tmp_path / "checkpoint")
    freezer = DeepFreeze(saved)
    freezer.save(saved, path, 3).finished()
    loaded = {"model.weight": np.zeros(5)}
    freezer.load(loaded, path)
    assert loaded["model.weight"].tolist() == saved["model.weight"].tolist()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"weight": np.ones(300_000, "float64")}, r"weight is float64\[300000\], and was float32"),
        ({"weight": np.ones(300_000, "int32")}, r"weight is int32\[300000\], and was float32"),
        ({"weight": np.ones(300_001, "float32")}, r"weight is float32\[300001\], and was float32"),
        ({"weight": np.ones(300_000, "float32"), "new": np.ones(2)}, "new is .*was missing"),
        ({}, "weight is missing"),
    ],
    ids=["a larger type", "another type", "larger", "one more", "one less"],
)
def test_arrays_that_are_others_now_are_refused(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    """A part of a larger array would be stored with a right checksum."""
    freezer = DeepFreeze({"weight": np.ones(300_000, "float32")})
    with pytest.raises(ValueError, match=words):
        freezer.save(changed, tmp_path / "checkpoint", 3)
    assert not (tmp_path / "checkpoint").exists()


def test_a_memory_of_another_training_that_saved_the_same_step_is_not_restored(
    tmp_path: Path,
) -> None:
    memory = tmp_path / "memory"
    for value, name in ((1.0, "first"), (2.0, "second")):
        arrays = {"weight": np.full(5, value)}
        DeepFreeze(arrays, memory).save(arrays, tmp_path / name, 3).finished()
    for value, name in ((1.0, "first"), (2.0, "second")):
        loaded = {"weight": np.zeros(5)}
        DeepFreeze(loaded, memory).load(loaded, tmp_path / name)
        assert loaded["weight"].tolist() == [value] * 5


def test_a_file_system_without_direct_io_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return open_file(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    saved = {"weight": np.arange(300_000.0)}
    DeepFreeze(saved).save(saved, tmp_path / "checkpoint", 3).finished()
    loaded = {"weight": np.zeros(300_000)}
    DeepFreeze(loaded).load(loaded, tmp_path / "checkpoint")
    assert np.array_equal(loaded["weight"], saved["weight"])
