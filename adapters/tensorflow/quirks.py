"""The points in which TensorFlow differs from what the conformance suite expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from adapters.shared import quirks
from adapters.tensorflow.state import State
from workloads import Role

# TensorFlow may move smaller values in a step.
_LARGE_BYTES = 1 << 14


OWN_MODEL = """
import keras
import numpy as np

def model():
    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(9, 4)(inputs)
    x = keras.layers.Conv1D(5, 3, name="c")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.2)(keras.layers.Flatten()(x))
    x = keras.layers.Dropout(0.2)(keras.layers.Dense(6, trainable=False)(x))
    return keras.Model(inputs, keras.layers.Dense(2, use_bias=False)(x))

def make():
    return model(), keras.optimizers.Adam(0.01, use_ema=True), step

def step(model, number):
    tokens = np.random.default_rng(number).permuted(np.tile(np.arange(9), (6, 1)), axis=1)[:, :6]
    return keras.ops.mean((model(tokens, training=True) - 1) ** 2)

def make_without_step():
    m = model()
    m.compile("sgd")
    return m
"""


def _script(made: str, step: str = "return keras.ops.mean(model(np.ones((2, 3))))") -> str:
    """Return a script whose `make` does this, with a step of this body."""
    return f"""
import keras
import numpy as np
import tensorflow as tf
def new():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
def step(model, number):
    {step}
def make():
    m, o = new(), keras.optimizers.SGD(0.1)
    {made}
"""


BROKEN_MODELS = {
    "no return": (_script("pass"), "first value must be a keras.Model, and it returned None"),
    "wrong order": (_script("return o, m"), "keras.Model, and it returned 2 values"),
    "model alone": (
        _script("return m"),
        "is not compiled, and no keras.optimizers.Optimizer follows",
    ),
    "class of an optimizer": (
        _script("return m, keras.optimizers.SGD"),
        "the model is not compiled",
    ),
    "two optimizers": (
        _script("return m, {'a': o, 'b': keras.optimizers.Adam()}"),
        "Keras takes one optimizer, and it returned 2 in a dictionary$",
    ),
    "too many values": (_script("return m, o, step, 1"), "not 4 values"),
    "step is no function": (_script("return m, o, 3"), "last value.*not an int"),
    "step of one argument": (
        _script("return m, o, lambda model: 0"),
        "must take two arguments, the model and the number",
    ),
    "not built": (
        _script("return keras.Sequential([keras.layers.Dense(1)]), o"),
        "no variables yet.*call it once",
    ),
    "no parameters": (
        _script("m.trainable = False; return m, o"),
        "no parameters that can be trained",
    ),
    "optimizer of another model": (
        _script("o.build(new().trainable_variables); return m, o"),
        "SGD was built for 2 other variables than the 2",
    ),
    "step returns nothing": (
        _script("return m, o, step", "pass"),
        "must return the loss alone, as a tensor.*it returned None",
    ),
    "step returns a number": (_script("return m, o, step", "return 0.5"), "it returned a float"),
    "step returns all losses": (
        _script("return m, o, step", "return model(np.ones((2, 3)))"),
        r"one floating-point number.*shape \[2, 1\] and type float32",
    ),
    "loss of something else": (
        _script("return m, o, step", "return tf.constant(1.0)"),
        "does not depend on the model's trainable variables",
    ),
    "step changes nothing": (
        _script("o.learning_rate = 0.0; return m, o, step"),
        "changes none of the 2 weights",
    ),
    "step raises": (
        _script("return m, o, step", "return model(np.ones((2, 4)))"),
        "^train.py:8: ValueError: .*incompatible",
    ),
}


class Quirks(quirks.Quirks[State]):
    """TensorFlow compiles every state, which takes seconds."""

    added_leaves = ("position/step", "optimizer/iterations", r"rng/.*dropout\d?")
    required_leaves = ("position/step", "optimizer/iterations")
    dtypes = frozenset({"bfloat16", "float32", "int64"})
    without_gpu = "finds no CUDA device"
    cases_from_scratch = ("candle-mlp-float32",)
    cases_behind_a_save = ("resnet50-float32",)
    cases_of_entries = ("resnet50-float32", "llm-slice-bf16-mixed")
    copies = {
        # The optimizer is written, although Keras cannot read it back.
        "legacy-h5": {Role.WEIGHT: 1, Role.BUFFER: 1, Role.OPTIMIZER: 1},
        # The weights are written twice, and the dropout seeds cannot be read back.
        "saved-model": {Role.WEIGHT: 2, Role.BUFFER: 2, Role.RNG: 1},
    }
    # A bundle holds nothing else but the length and the checksum of its one text.
    unaccounted_bytes = {".data-": 8}

    # A step of resnet50 has given some convolutions' momentum new memory.
    cases_in_place = ("candle-mlp-float32",)
    loads_in_place_during_a_save = True

    own_model = OWN_MODEL
    broken_models = BROKEN_MODELS

    def addresses(self, state: State) -> dict[str, int]:
        addresses = {}
        for name, variable in state.plain_variables().items():
            value = variable.value()
            if value.dtype.size * value.shape.num_elements() >= _LARGE_BYTES:
                data = np.frombuffer(memoryview(tf.bitcast(value, tf.uint8)), np.uint8)
                addresses[name] = data.ctypes.data
        return addresses

    def saved_tensors(self, state: State) -> Mapping[str, Any]:
        """Return the variables in TensorFlow's own layout, which has other axes."""
        return {name: variable.numpy() for name, variable in state.plain_variables().items()}
