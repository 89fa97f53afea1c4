"""DeepFreeze in every framework: its files, the memory that it uses, and loads that break off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepfreeze_loads import flip_last_byte, load_breaks_off, read_in_small_blocks
from deepfreeze_shards import indexed, save_shards
from subject import (
    SUBJECT,
    copied_leaves,
    new_method,
    opened,
    save,
    train,
)

from adapters.deepfreeze.arrivals import Arrival
from adapters.deepfreeze.errors import Damaged
from adapters.shared.quirks import Quirks

if "deepfreeze" not in SUBJECT.methods:
    pytest.skip(f"{SUBJECT.name} has no DeepFreeze", allow_module_level=True)

QUIRKS = SUBJECT.quirks
FILE = "model.safetensors"
RECYCLED = [case for case in SUBJECT.cases if case.startswith("llm-slice")]

by_addresses = pytest.mark.skipif(
    type(QUIRKS).addresses is Quirks.addresses,
    reason="the framework does not tell where its tensors lie",
)


@by_addresses
@pytest.mark.parametrize("case", SUBJECT.chosen(QUIRKS.cases_in_place))
def test_the_step_behind_a_save_still_works_in_place(
    lasting_framework: Any, prepared: Any, case: str, tmp_path: Path
) -> None:
    """A framework copies tensors that something else still uses, so `staged` must release them."""
    state = prepared(case, 1)
    train(lasting_framework, state, 1)
    method = new_method("deepfreeze", lasting_framework)
    with opened(method, state):
        before = QUIRKS.addresses(state)
        assert before
        pending = method.save(state, tmp_path / "checkpoint")
        lasting_framework.gradients(state)
        pending.staged()
        lasting_framework.update(state)
        assert QUIRKS.addresses(state) == before
        pending.finished()


@by_addresses
@pytest.mark.parametrize("case", RECYCLED)
def test_a_load_takes_the_memory_that_is_there(
    lasting_framework: Any, prepared: Any, case: str, tmp_path: Path
) -> None:
    state = prepared(case, 1)
    train(lasting_framework, state, 1)
    method = new_method("deepfreeze", lasting_framework)
    with opened(method, state):
        saved = copied_leaves(lasting_framework, state)
        save(method, state, tmp_path / "checkpoint")
        train(lasting_framework, state, 1)
        assert copied_leaves(lasting_framework, state) != saved
        before = QUIRKS.addresses(state)
        assert before
        method.load(state, tmp_path / "checkpoint")
    assert QUIRKS.addresses(state) == before
    assert copied_leaves(lasting_framework, state) == saved


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_load_during_a_save_takes_nothing_from_it(
    lasting_framework: Any, prepared: Any, is_staged: bool, tmp_path: Path
) -> None:
    state = prepared("candle-mlp-float32", 1)
    train(lasting_framework, state, 1)
    method = new_method("deepfreeze", lasting_framework)
    with opened(method, state):
        first = copied_leaves(lasting_framework, state)
        save(method, state, tmp_path / "first")
        train(lasting_framework, state, 1)
        second = copied_leaves(lasting_framework, state)
        before = QUIRKS.addresses(state) if QUIRKS.loads_in_place_during_a_save else {}
        pending = method.save(state, tmp_path / "second")
        if is_staged:
            pending.staged()
        method.load(state, tmp_path / "first")
        assert copied_leaves(lasting_framework, state) == first
        if QUIRKS.loads_in_place_during_a_save:
            assert QUIRKS.addresses(state) == before
        pending.finished()
        method.load(state, tmp_path / "second")
        assert copied_leaves(lasting_framework, state) == second


def test_a_load_that_breaks_off_leaves_no_thread_reading(
    lasting_framework: Any, prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_small_blocks(monkeypatch)
    state = prepared("resnet50-float32", 1)
    method = new_method("deepfreeze", lasting_framework)
    with opened(method, state):
        load_breaks_off(method, state, tmp_path / "checkpoint", Arrival, "check", monkeypatch)
    train(lasting_framework, state, 1)


def test_a_load_that_finds_damage_leaves_a_state_that_trains(
    lasting_framework: Any, prepared: Any, tmp_path: Path
) -> None:
    state = prepared("candle-mlp-float32", 1)
    method = new_method("deepfreeze", lasting_framework)
    with opened(method, state):
        save(method, state, tmp_path / "checkpoint")
        flip_last_byte(tmp_path / "checkpoint" / FILE)
        with pytest.raises(Damaged, match="checksum"):
            method.load(state, tmp_path / "checkpoint")
        (tmp_path / "checkpoint" / FILE).unlink()
        with pytest.raises(FileNotFoundError):
            method.load(state, tmp_path / "checkpoint")
    if QUIRKS.trains_after_damage:
        train(lasting_framework, state, 1)


@pytest.mark.parametrize("case", SUBJECT.chosen(QUIRKS.cases_of_safetensors))
def test_the_library_finds_every_tensor(
    lasting_framework: Any, prepared: Any, case: str, tmp_path: Path
) -> None:
    safetensors = pytest.importorskip("safetensors")
    state = prepared(case, 1)
    method = new_method("deepfreeze", lasting_framework)
    with opened(method, state):
        save(method, state, tmp_path / "checkpoint")
    with safetensors.safe_open(tmp_path / "checkpoint" / FILE, QUIRKS.safetensors_name) as file:
        metadata = file.metadata()
        names = list(file.keys())
        tensors = {name: QUIRKS.described(file.get_tensor(name)) for name in names}
    assert tensors == expected_tensors(lasting_framework, state)
    assert metadata["framework"] == method.metadata["framework"]
    assert metadata["step"] == "3"
    assert {f"xxh3_64:{name}" for name in tensors} < metadata.keys()


def expected_tensors(framework: Any, state: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return type, shape and bytes of every tensor that DeepFreeze has to save."""
    own = QUIRKS.saved_tensors(state)
    if own is not None:
        return {
            name: (str(array.dtype), array.shape, np.asarray(array).tobytes())
            for name, array in own.items()
        }
    return {
        leaf.name: (leaf.dtype, tuple(leaf.shape), bytes(leaf.data))
        for leaf in framework.leaves(state)
    }


def test_the_library_opens_the_files_of_several_ranks_through_their_index(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    if not QUIRKS.reads_bfloat16:
        pytest.skip("the framework's arrays have no bfloat16")
    expected = save_shards(tmp_path / "checkpoint")
    tensors = {}
    for name, path in indexed(tmp_path / "checkpoint"):
        with safetensors.safe_open(path, QUIRKS.safetensors_name) as file:
            _, _, tensors[name] = QUIRKS.described(file.get_tensor(name))
    assert tensors == expected
    assert len(tensors) > 6, "no tensor is divided"
