"""The values in TensorFlow's and Keras's files, and flaws that the adapter works around."""

from __future__ import annotations

import json
import threading
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from subject import SUBJECT, digests, new_method, opened, saved_entries

import workloads
from adapters.base import Entry
from adapters.tensorflow.framework import TensorFlow
from adapters.tensorflow.state import State
from workloads import Role, role_of

Prepare = Callable[[str, int], State]
CASES = SUBJECT.chosen(SUBJECT.quirks.cases_of_entries)


def value_of(path: Path, entry: Entry) -> bytes:
    """Return the bytes of an entry, as the library of its format reads them."""
    file = path / entry.file
    if ".data-" in file.name:
        return tf.train.load_checkpoint(file.with_suffix("")).get_tensor(entry.name).tobytes()
    if file.suffix == ".safetensors":
        content = file.read_bytes()
        header_bytes = 8 + int.from_bytes(content[:8], "little")
        start, stop = json.loads(content[8:header_bytes])[entry.name]["data_offsets"]
        return content[header_bytes + start : header_bytes + stop]
    with ExitStack() as stack:
        content = (
            stack.enter_context(zipfile.Path(file, "model.weights.h5").open("rb"))
            if file.suffix == ".keras"
            else file
        )
        return stack.enter_context(h5py.File(content))[entry.name][()].tobytes()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SUBJECT.methods)
def test_the_entries_of_a_role_have_the_values_of_its_variables(
    lasting_framework: TensorFlow, prepared: Prepare, name: str, case: str, tmp_path: Path
) -> None:
    state = prepared(case, 1)
    actual: Counter[tuple[Role, bytes]] = Counter()
    for entry in saved_entries(new_method(name, lasting_framework), state, tmp_path / "checkpoint"):
        if entry.role is not None:
            actual[entry.role, value_of(tmp_path / "checkpoint", entry)] += 1
    expected: Counter[tuple[Role, bytes]] = Counter()
    for variable_name, variable in state.plain_variables().items():
        role = role_of(variable_name)
        expected[role, variable.numpy().tobytes()] += SUBJECT.copies(name).get(role, 0)
    assert actual == expected


@pytest.mark.parametrize("name", ["keras", "legacy-h5", "weights-h5", "weights-sharded"])
def test_the_entry_without_a_role_is_the_learning_rate(
    lasting_framework: TensorFlow, prepared: Prepare, name: str, tmp_path: Path
) -> None:
    state = prepared("resnet50-float32", 1)
    entries = saved_entries(new_method(name, lasting_framework), state, tmp_path / "checkpoint")
    (rate,) = [value_of(tmp_path / "checkpoint", entry) for entry in entries if entry.role is None]
    assert rate == np.float32(state.workload.optimizer.learning_rate).tobytes()


def test_keras_files_are_not_compressed(
    lasting_framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    new_method("keras", lasting_framework).save(
        prepared("candle-mlp-float32", 1), tmp_path / "checkpoint"
    )
    with zipfile.ZipFile(tmp_path / "checkpoint" / "model.keras") as archive:
        assert all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())


def test_an_asynchronous_save_ends_its_thread(framework: TensorFlow, tmp_path: Path) -> None:
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = new_method("tf-checkpoint-async", framework)
    before = threading.active_count()
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_an_asynchronous_save_can_go_on_with_another_state(
    lasting_framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    first, second = (prepared("candle-mlp-float32", seed) for seed in (1, 2))
    method = new_method("tf-checkpoint-async", lasting_framework)
    with opened(method, first):
        method.save(first, tmp_path / "first").finished()
        method.save(second, tmp_path / "second").finished()
        method.load(first, tmp_path / "second")
    assert digests(lasting_framework, first) == digests(lasting_framework, second)


def test_sync_alone_keeps_the_error_of_an_asynchronous_write(
    framework: TensorFlow, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    state = framework.build(workloads.load("candle-mlp", "small"), 1)
    method = new_method("tf-checkpoint-async", framework)
    method.open(state)
    method.save(state, tmp_path / "file" / "checkpoint")
    # This reports nothing, which is why `finished` asks on.
    method._checkpoint.sync()
    with pytest.raises(Exception, match=r"file|directory"):
        method.close()


def test_sharded_weights_are_several_files(
    lasting_framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    new_method("weights-sharded", lasting_framework).save(
        prepared("resnet50-float32", 1), tmp_path / "checkpoint"
    )
    assert len(list((tmp_path / "checkpoint").glob("*.weights.h5"))) > 1


def test_the_legacy_file_gives_no_optimizer_back(
    lasting_framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    new_method("legacy-h5", lasting_framework).save(
        prepared("candle-mlp-float32", 1), tmp_path / "checkpoint"
    )
    loaded = keras.saving.load_model(tmp_path / "checkpoint" / "model.h5")
    assert all(slots == [] for slots in loaded.optimizer.slots.values())


def test_a_saved_model_holds_every_weight_twice(
    lasting_framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    state = prepared("candle-mlp-float32", 1)
    new_method("saved-model", lasting_framework).save(state, tmp_path / "checkpoint")
    weights = sum(
        leaf.data.nbytes for leaf in lasting_framework.leaves(state) if leaf.role is Role.WEIGHT
    )
    written = sum(
        path.stat().st_size for path in (tmp_path / "checkpoint" / "variables").glob("*.data-*")
    )
    assert written > 2 * weights


def test_keras_spoils_a_model_by_saving_it_as_legacy_file(
    lasting_framework: TensorFlow, prepared: Prepare, tmp_path: Path
) -> None:
    state = prepared("candle-mlp-float32", 1)
    new_method("legacy-h5", lasting_framework).save(state, tmp_path / "checkpoint")
    assert "optimizer" in state.model.get_compile_config()
    state.model.save(tmp_path / "model.h5")
    # Otherwise `LegacyFile` would not have to compile the model again.
    assert "optimizer" not in state.model.get_compile_config()
    state.compile()
