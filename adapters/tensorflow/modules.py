"""The neutral vocabulary as Keras layers: channels last, kernels (in, out) and (height, width, in, out).

Every layer of the vocabulary that has parameters becomes one Keras layer whose name is its
canonical path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from workloads import layers
from workloads.layers import Layer

PACKAGE = "ckptbench"  # under which saved files find the classes below


def new_model(
    layer: Layer, shape: tuple[int, ...], input_dtype: str, dtype: str, seeds: Iterator[int]
) -> keras.Model:
    """Return the model of an architecture, with Keras's own first values.

    `shape` is that of one example as the model takes it, `dtype` that of weights and activations;
    each dropout layer takes one of the seeds.
    """
    inputs = keras.Input(shape, dtype=input_dtype)
    return keras.Model(inputs, _Translation(dtype, seeds).apply(layer, inputs, ""))


class _Translation:
    """What all layers of one model share."""

    def __init__(self, dtype: str, seeds: Iterator[int]) -> None:
        self.dtype = dtype
        self.seeds = seeds

    def apply(self, layer: Layer, x: keras.KerasTensor, path: str) -> keras.KerasTensor:
        """Return what the layer at `path` makes of `x`."""
        match layer:
            case layers.Sequential(children):
                for name, child in children:
                    x = self.apply(child, x, _join(path, name))
                return x
            case layers.Residual(after=after):
                total = keras.layers.Add(name=_join(path, "sum"), dtype=self.dtype)(
                    [self._child(layer, "body", x, path), self._child(layer, "shortcut", x, path)]
                )
                return total if after is None else self.apply(after, total, _join(path, "after"))
            case layers.Convolution(padding=padding) if padding:
                # Keras's "same" pads unevenly where the stride is not one.
                x = keras.layers.ZeroPadding2D(
                    padding, name=_join(path, "padding"), dtype=self.dtype
                )(x)
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
    """A layer that is made again from the numbers it was made of, as every file with an architecture needs it."""

    def __init__(self, numbers: dict[str, Any], **common: Any) -> None:
        super().__init__(**common)
        self._numbers = numbers

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `__init__`."""
        return super().get_config() | dict(self._numbers)

    def _dense(self, name: str, outputs: int) -> keras.layers.Dense:
        return keras.layers.Dense(
            outputs, use_bias=False, name=_join(self.name, name), dtype=self.dtype_policy
        )


@keras.saving.register_keras_serializable(PACKAGE)
class BatchNorm(_Configured):
    """See `layers.BatchNorm`.

    Keras's own layer keeps the running average of the biased variance, and its momentum is the
    weight of the old average. Here it is the unbiased variance, as in torch.nn.BatchNorm2d.
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
        self.moving_variance = self.add_weight(
            features, "ones", trainable=False, name="moving_variance"
        )

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """(batch, height, width, channels) -> the same shape."""
        mean, variance = self.moving_mean, self.moving_variance
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
    """See `layers.MaxPool`. Keras's own layer cannot pad evenly."""

    def __init__(self, kernel: int, stride: int, padding: int, **common: Any) -> None:
        super().__init__({"kernel": kernel, "stride": stride, "padding": padding}, **common)
        self.kernel = kernel
        self.stride = stride
        self.padding = padding

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """(batch, height, width, channels) -> the same with smaller height and width."""
        sides = (self.padding, self.padding)
        padded = tf.pad(x, ((0, 0), sides, sides, (0, 0)), constant_values=-float("inf"))
        return tf.nn.max_pool2d(padded, self.kernel, self.stride, "VALID")


@keras.saving.register_keras_serializable(PACKAGE)
class Attention(_Configured):
    """See `layers.Attention`. Keras's own layer has no rotary positions."""

    def __init__(
        self, features: int, heads: int, kv_heads: int, theta: float, **common: Any
    ) -> None:
        super().__init__(
            {"features": features, "heads": heads, "kv_heads": kv_heads, "theta": theta}, **common
        )
        self.head_features = features // heads
        self.theta = theta
        self.query = self._dense("query", features)
        self.key = self._dense("key", kv_heads * self.head_features)
        self.value = self._dense("value", kv_heads * self.head_features)
        # `output` is a property of every Keras layer
        self.output_projection = self._dense("output", features)

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the variables for sequences of `shape`."""
        for projection in (self.query, self.key, self.value, self.output_projection):
            projection.build(shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """(batch, position, feature) -> the same shape."""
        query = rotate(self._split(self.query(x)), self.theta)
        key = rotate(self._split(self.key(x)), self.theta)
        mixed = keras.ops.dot_product_attention(
            query, key, self._split(self.value(x)), is_causal=True
        )
        return self.output_projection(keras.ops.reshape(mixed, keras.ops.shape(x)))

    def _split(self, x: tf.Tensor) -> tf.Tensor:
        """(batch, position, heads * head feature) -> (batch, position, head, head feature)."""
        return keras.ops.reshape(
            x, (-1, x.shape[1], x.shape[2] // self.head_features, self.head_features)
        )


def rotate(x: tf.Tensor, theta: float) -> tf.Tensor:
    """Turn the head features of (batch, position, head, head feature) by their position; angles are float32."""
    position = tf.range(x.shape[1], dtype=tf.float32)
    pair = tf.range(0, x.shape[3], 2, dtype=tf.float32) / x.shape[3]
    angle = (position[:, None] * theta**-pair)[:, None]
    cosine, sine = tf.cos(angle), tf.sin(angle)
    first, second = tf.split(tf.cast(x, tf.float32), 2, axis=3)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return tf.cast(tf.concat(turned, axis=3), x.dtype)


@keras.saving.register_keras_serializable(PACKAGE)
class SwiGlu(_Configured):
    """See `layers.SwiGlu`."""

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
        """(batch, position, feature) -> the same shape."""
        return self.down(keras.ops.silu(self.gate(x)) * self.up(x))
