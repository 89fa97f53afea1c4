"""The lines that TensorFlow's methods declare for training scripts save and load bit by bit."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from script_lines import DECLARED, STEP, Names, covers_optimizer, run

pytestmark = pytest.mark.slow


def trained(seed: int, steps: int = STEP) -> Names:
    """Return a compiled model and its optimizer after some steps, and data for more."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(7), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.compile(keras.optimizers.Adam(), loss="mse", jit_compile=False)
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(4, 5))
    targets = random.normal(size=(4, 3))
    weights = model.trainable_variables
    for _ in range(steps):
        # Gradients of a real loss would be compiled first, which takes seconds.
        gradients = [tf.constant(random.normal(size=each.shape), "float32") for each in weights]
        model.optimizer.apply(gradients, weights)
    return {"model": model, "optimizer": model.optimizer, "inputs": inputs, "targets": targets}


def values(names: Names, optimizer: bool) -> list[bytes]:
    """Return the bytes of the model's variables, and of the optimizer's if asked for."""
    variables = names["model"].weights + (names["optimizer"].variables if optimizer else [])
    return [variable.numpy().tobytes() for variable in variables]


@pytest.mark.parametrize("method", DECLARED)
def test_the_lines_of_a_method_save_and_load(method: str, tmp_path: Path) -> None:
    both = covers_optimizer(method)
    # Some lines train, so that the state they have saved is the one after them.
    names = run(method, "save", trained(seed=1), tmp_path)
    saved = values(names, both)
    other = trained(seed=2)
    assert values(other, both) != saved
    assert values(run(method, "load", other, tmp_path), both) == saved


@pytest.mark.parametrize("method", DECLARED)
def test_the_lines_of_a_method_load_into_a_new_optimizer(method: str, tmp_path: Path) -> None:
    """A process that starts again has one that has taken no step."""
    both = covers_optimizer(method)
    names = run(method, "save", trained(seed=1), tmp_path)
    restored = run(method, "load", trained(seed=2, steps=0), tmp_path)
    assert values(restored, both) == values(names, both)
