"""The neutral layers as Keras layers.

Channels are last, and kernels are (in, out) and (height, width, in, out). Every neutral layer with
parameters becomes one Keras layer, whose name is the canonical path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from workloads import layers
from workloads.layers import Layer

PACKAGE = "ckptbench"  # the name by which saved files find the classes below


def new_model(
    layer: Layer, shape: tuple[int, ...], input_dtype: str, dtype: str, seeds: Iterator[int]
) -> keras.Model:
    """Return the model of an architecture with Keras's first values.

    `shape` is the shape of one input example, and `dtype` the type of weights and activations. Each
    dropout layer takes one of the seeds.
    """
    inputs = keras.Input(shape, dtype=input_dtype)
    return keras.Model(inputs, _Translation(dtype, seeds).apply(layer, inputs, ""))


class _Translation:
    """The translation of one model, with the values that its layers share."""

    def __init__(self, dtype: str, seeds: Iterator[int]) -> None:
        self.dtype = dtype
        self.seeds = seeds

    def apply(self, layer: Layer, x: keras.KerasTensor, path: str) -> keras.KerasTensor:
        """Return the output of the layer at `path` for the input `x`.

        Raises TypeError for an unknown layer.
        """
        match layer:
            case layers.Sequential(children):
                for name, child in children:
                    x = self.apply(child, x, _join(path, name))
                return x
            case layers.Residual(after=after):
                add = keras.layers.Add(name=_join(path, "sum"), dtype=self.dtype)
                body = self._child(layer, "body", x, path)
                shortcut = self._child(layer, "shortcut", x, path)
                total = add([body, shortcut])
                return total if after is None else self.apply(after, total, _join(path, "after"))
            case layers.Convolution(padding=padding) if padding:
                # Keras's "same" pads the sides unevenly if the stride is not one.
                name = _join(path, "padding")
                x = keras.layers.ZeroPadding2D(padding, name=name, dtype=self.dtype)(x)
        return self._keras_layer(layer, {"name": path, "dtype": self.dtype})(x)

    def _child(
        self, parent: Layer, name: str, x: keras.KerasTensor, path: str
    ) -> keras.KerasTensor:
        child = dict(parent.children).get(name)
        return x if child is None else self.apply(child, x, _join(path, name))

    def _keras_layer(self, layer: Layer, common: dict[str, Any]) -> keras.layers.Layer:
        match layer:
            case layers.Dense(_, outputs, _, bias):
                return keras.layers.Dense(outputs, use_bias=bias, **common)
            case layers.Convolution(_, outputs, kernel, stride):
                return keras.layers.Conv2D(outputs, kernel, stride, use_bias=False, **common)
            case layers.BatchNorm(_, epsilon, momentum):
                return BatchNorm(epsilon, momentum, **common)
            case layers.Relu():
                return keras.layers.ReLU(**common)
            case layers.MaxPool(kernel, stride, padding):
                return MaxPool(kernel, stride, padding, **common)
            case layers.GlobalAveragePool():
                return keras.layers.GlobalAveragePooling2D(**common)
            case layers.Dropout(rate):
                return keras.layers.Dropout(rate, seed=next(self.seeds), **common)
            case layers.Embedding(tokens, features):
                return keras.layers.Embedding(tokens, features, **common)
            case layers.RmsNorm(_, epsilon):
                return keras.layers.RMSNormalization(epsilon=epsilon, **common)
            case layers.Attention(features, heads, kv_heads, theta):
                return Attention(features, heads, kv_heads, theta, **common)
            case layers.SwiGlu(features, hidden):
                return SwiGlu(features, hidden, **common)
        raise TypeError(f"no Keras layer for {type(layer).__name__}")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class _Configured(keras.layers.Layer):
    """A layer that knows the numbers from which it was made.

    A file with an architecture keeps them, and makes the layer from them again.
    """

    def __init__(self, numbers: dict[str, Any], **common: Any) -> None:
        super().__init__(**common)
        self._numbers = numbers

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `__init__`."""
        return super().get_config() | dict(self._numbers)

    def _dense(self, name: str, outputs: int) -> keras.layers.Dense:
        path = _join(self.name, name)
        return keras.layers.Dense(outputs, use_bias=False, name=path, dtype=self.dtype_policy)


@keras.saving.register_keras_serializable(PACKAGE)
class BatchNorm(_Configured):
    """`layers.BatchNorm` as a Keras layer.

    Keras's own layer averages the biased variance, and its momentum is the weight of the old
    average. This one averages the unbiased variance, as torch.nn.BatchNorm2d does.
    """

    def __init__(self, epsilon: float, momentum: float, **common: Any) -> None:
        super().__init__({"epsilon": epsilon, "momentum": momentum}, **common)
        self.epsilon = epsilon
        self.momentum = momentum

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the variables for images of `shape`."""
        features = (shape[-1],)
        self.gamma = self.add_weight(features, "ones", name="gamma")
        self.beta = self.add_weight(features, "zeros", name="beta")
        self.moving_mean = self.add_weight(features, "zeros", trainable=False, name="moving_mean")
        name = "moving_variance"
        self.moving_variance = self.add_weight(features, "ones", trainable=False, name=name)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Take (batch, height, width, channels) to the same shape."""
        mean = self.moving_mean
        variance = self.moving_variance
        if training:
            mean, variance = tf.nn.moments(x, (0, 1, 2))
            count = tf.cast(tf.size(x) // tf.size(mean), x.dtype)
            self._follow(self.moving_mean, mean)
            self._follow(self.moving_variance, variance * (count / (count - 1)))
        return tf.nn.batch_normalization(x, mean, variance, self.beta, self.gamma, self.epsilon)

    def _follow(self, running: keras.Variable, batch: tf.Tensor) -> None:
        running.assign((1 - self.momentum) * running + self.momentum * batch)


@keras.saving.register_keras_serializable(PACKAGE)
class MaxPool(_Configured):
    """`layers.MaxPool` as a Keras layer. Keras's own layer cannot pad evenly."""

    def __init__(self, kernel: int, stride: int, padding: int, **common: Any) -> None:
        super().__init__({"kernel": kernel, "stride": stride, "padding": padding}, **common)
        self.kernel = kernel
        self.stride = stride
        self.padding = padding

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Take (batch, height, width, channels) to the same with smaller height and width."""
        sides = (self.padding, self.padding)
        padded = tf.pad(x, ((0, 0), sides, sides, (0, 0)), constant_values=-float("inf"))
        return tf.nn.max_pool2d(padded, self.kernel, self.stride, "VALID")


@keras.saving.register_keras_serializable(PACKAGE)
class Attention(_Configured):
    """`layers.Attention` as a Keras layer. Keras's own layer has no rotary positions."""

    def __init__(
        self, features: int, heads: int, kv_heads: int, theta: float, **common: Any
    ) -> None:
        numbers = {"features": features, "heads": heads, "kv_heads": kv_heads, "theta": theta}
        super().__init__(numbers, **common)
        self.head_features = features // heads
        self.theta = theta
        self.query = self._dense("query", features)
        self.key = self._dense("key", kv_heads * self.head_features)
        self.value = self._dense("value", kv_heads * self.head_features)
        # It is not named `output`, because every Keras layer has a property of that name.
        self.output_projection = self._dense("output", features)

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the variables for sequences of `shape`."""
        for projection in (self.query, self.key, self.value, self.output_projection):
            projection.build(shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Take (batch, position, feature) to the same shape."""
        query = rotate(self._split(self.query(x)), self.theta)
        key = rotate(self._split(self.key(x)), self.theta)
        value = self._split(self.value(x))
        mixed = keras.ops.dot_product_attention(query, key, value, is_causal=True)
        return self.output_projection(keras.ops.reshape(mixed, keras.ops.shape(x)))

    def _split(self, x: tf.Tensor) -> tf.Tensor:
        """Take (batch, position, heads * head feature) to (batch, position, head, head feature)."""
        heads = x.shape[2] // self.head_features
        return keras.ops.reshape(x, (-1, x.shape[1], heads, self.head_features))


def rotate(x: tf.Tensor, theta: float) -> tf.Tensor:
    """Rotate the features of (batch, position, head, head feature) by their positions.

    The angles are float32 in every precision.
    """
    position = tf.range(x.shape[1], dtype=tf.float32)
    pair = tf.range(0, x.shape[3], 2, dtype=tf.float32) / x.shape[3]
    angle = (position[:, None] * theta**-pair)[:, None]
    cosine = tf.cos(angle)
    sine = tf.sin(angle)
    first, second = tf.split(tf.cast(x, tf.float32), 2, axis=3)
    rotated_first = first * cosine - second * sine
    rotated_second = second * cosine + first * sine
    return tf.cast(tf.concat((rotated_first, rotated_second), axis=3), x.dtype)


@keras.saving.register_keras_serializable(PACKAGE)
class SwiGlu(_Configured):
    """`layers.SwiGlu` as a Keras layer."""

    def __init__(self, features: int, hidden: int, **common: Any) -> None:
        super().__init__({"features": features, "hidden": hidden}, **common)
        self.gate = self._dense("gate", hidden)
        self.up = self._dense("up", hidden)
        self.down = self._dense("down", features)

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the variables for sequences of `shape`."""
        self.gate.build(shape)
        self.up.build(shape)
        self.down.build((*shape[:-1], self.up.units))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Take (batch, position, feature) to the same shape."""
        return self.down(keras.ops.silu(self.gate(x)) * self.up(x))
