"""The lines that Chainer's methods declare for training scripts save and load bit by bit."""

from __future__ import annotations

from pathlib import Path

import chainer
import numpy as np
import pytest
from chainer import links, training
from chainer.serializers import DictionarySerializer
from script_lines import DECLARED, STEP, Names, run

pytestmark = pytest.mark.slow


def prepared(seed: int, folder: Path, takes_step: bool = True) -> Names:
    """Return a model and an optimizer after a step, and a trainer that takes as many as it saves.

    The trainer has not begun, because extensions must join it before.
    """
    random = np.random.default_rng(seed)
    np.random.seed(seed)
    model = links.Classifier(
        chainer.Sequential(links.Linear(5, 7), links.BatchNormalization(7), links.Linear(7, 3))
    )
    optimizer = chainer.optimizers.Adam().setup(model)
    inputs = random.normal(size=(8, 5)).astype("float32")
    examples = chainer.datasets.TupleDataset(inputs, np.arange(8, dtype="int32") % 3)
    if takes_step:
        optimizer.update(model, inputs, examples[:][0][1] * np.ones(8, dtype="int32"))
    iterator = chainer.iterators.SerialIterator(examples, 4, shuffle=False)
    updater = training.StandardUpdater(iterator, optimizer)
    trainer = training.Trainer(updater, (STEP, "iteration"), out=str(folder / "checkpoint"))
    return {"model": model, "optimizer": optimizer, "trainer": trainer}


def values(names: Names) -> dict[str, bytes]:
    """Return the bytes of the arrays of model and optimizer."""
    serializer = DictionarySerializer()
    serializer["model"].save(names["model"])
    serializer["optimizer"].save(names["optimizer"])
    return {name: np.asarray(array).tobytes() for name, array in serializer.target.items()}


@pytest.mark.parametrize("method", DECLARED)
def test_the_lines_of_a_method_save_and_load(method: str, tmp_path: Path) -> None:
    # Some lines train, so that the state they have saved is the one after them.
    names = run(method, "save", prepared(1, tmp_path), tmp_path)
    other = prepared(2, tmp_path)
    assert values(other) != values(names)
    restored = run(method, "load", other, tmp_path)
    assert values(restored) == values(names)


@pytest.mark.parametrize("method", DECLARED)
def test_the_lines_of_a_method_load_into_a_new_optimizer(method: str, tmp_path: Path) -> None:
    """A process that starts again has one that has taken no step."""
    names = run(method, "save", prepared(1, tmp_path), tmp_path)
    restored = run(method, "load", prepared(2, tmp_path, takes_step=False), tmp_path)
    assert values(restored) == values(names)
