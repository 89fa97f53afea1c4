"""DeepFreeze for a training script, whose state is a dictionary of numpy arrays."""

from __future__ import annotations

from pathlib import Path

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
