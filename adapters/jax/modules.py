"""The neutral layers as pure functions.

Their weights and buffers are nested dictionaries with one level for each part of a canonical name.
All arrays keep the canonical layouts, so that `leaves` need not copy. XLA computes with its own.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from workloads import layers
from workloads.layers import Layer

Tree = dict[str, Any]


def forward(layer: Layer, weights: Tree, buffers: Tree, x: Array, key: Array) -> tuple[Array, Tree]:
    """Return the output of a layer, and its buffers after this batch.

    `key` decides which elements dropout sets to zero. Raises TypeError for an unknown layer.
    """
    match layer:
        case layers.Sequential():
            return _sequential(layer, weights, buffers, x, key)
        case layers.Residual():
            return _residual(layer, weights, buffers, x, key)
        case layers.BatchNorm():
            return _batch_norm(layer, weights, buffers, x)
        case layers.Dropout(rate):
            return _dropout(x, rate, key), {}
    return _pure(layer, weights, x), {}


def _sequential(
    layer: layers.Sequential, weights: Tree, buffers: Tree, x: Array, key: Array
) -> tuple[Array, Tree]:
    changed: Tree = {}
    for number, (name, _) in enumerate(layer.children):
        x = _child(layer, name, weights, buffers, changed, x, jax.random.fold_in(key, number))
    return x, changed


def _residual(
    layer: layers.Residual, weights: Tree, buffers: Tree, x: Array, key: Array
) -> tuple[Array, Tree]:
    changed: Tree = {}
    keys = jax.random.split(key, 3)
    body = _child(layer, "body", weights, buffers, changed, x, keys[0])
    shortcut = _child(layer, "shortcut", weights, buffers, changed, x, keys[1])
    return _child(layer, "after", weights, buffers, changed, body + shortcut, keys[2]), changed


def _child(
    parent: Layer, name: str, weights: Tree, buffers: Tree, changed: Tree, x: Array, key: Array
) -> Array:
    """Return the output of a child, and add its new buffers, if any, to `changed`.

    If there is no such child, return `x`.
    """
    child = dict(parent.children).get(name)
    if child is None:
        return x
    x, new_buffers = forward(child, weights.get(name, {}), buffers.get(name, {}), x, key)
    if new_buffers:
        changed[name] = new_buffers
    return x


def _batch_norm(
    layer: layers.BatchNorm, weights: Tree, buffers: Tree, x: Array
) -> tuple[Array, Tree]:
    mean = x.mean((0, 2, 3))
    variance = x.var((0, 2, 3))
    count = x.size // layer.features
    scale = weights["weight"] * lax.rsqrt(variance + layer.epsilon)
    output = (x - _per_channel(mean)) * _per_channel(scale) + _per_channel(weights["bias"])
    unbiased_variance = variance * (count / (count - 1))
    changed = {}
    for name, value in (("running_mean", mean), ("running_var", unbiased_variance)):
        changed[name] = (1 - layer.momentum) * buffers[name] + layer.momentum * value
    return output, changed


def _per_channel(x: Array) -> Array:
    return x[:, None, None]


def _dropout(x: Array, rate: float, key: Array) -> Array:
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x))


def _max_pool(x: Array, kernel: int, stride: int, padding: int) -> Array:
    """Take (image, channel, row, column) to the same with fewer rows and columns."""
    pads = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 1, kernel, kernel), (1, 1, stride, stride), pads
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool_by_windows(x: Array, kernel: int, stride: int, padding: int) -> Array:
    """Do what `_max_pool` does, without a scatter in the backward pass.

    The gradient goes to the first largest element of each window, too. If a GPU must be
    deterministic, XLA scatters one element after the other, which takes seconds for a batch of
    ResNet-50.
    """
    return _max_pool(x, kernel, stride, padding)


def _pool_forward(
    x: Array, kernel: int, stride: int, padding: int
) -> tuple[Array, tuple[Array, Array]]:
    pooled = _max_pool(x, kernel, stride, padding)
    return pooled, (x, pooled)


def _pool_backward(
    kernel: int, stride: int, padding: int, kept: tuple[Array, Array], gradient: Array
) -> tuple[Array]:
    """Return the gradient of the input, given the gradient of the output.

    For each place in a window, take the windows whose first largest element is at this place, and
    add their gradients there.
    """
    x, pooled = kept
    rows, columns = x.shape[2:]
    pads = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    padded = jnp.pad(x, pads, constant_values=-jnp.inf)
    has_largest = jnp.zeros(pooled.shape, bool)
    total = jnp.zeros_like(padded)
    for place in itertools.product(range(kernel), repeat=2):
        elements = _gathered(padded, place, stride, pooled.shape[2:])
        is_first_largest = (elements == pooled) & ~has_largest
        has_largest |= is_first_largest
        chosen = jnp.where(is_first_largest, gradient, 0)
        total += _spread(chosen, place, stride, padded.shape[2:])
    return (total[:, :, padding : padding + rows, padding : padding + columns],)


def _gathered(x: Array, place: tuple[int, ...], stride: int, shape: tuple[int, ...]) -> Array:
    """Return the elements at a place of all windows of images, as an array of (rows, columns)."""
    ends = _ends(place, stride, shape)
    return lax.slice(x, (0, 0, *place), (*x.shape[:2], *ends), (1, 1, stride, stride))


def _spread(x: Array, place: tuple[int, ...], stride: int, shape: tuple[int, ...]) -> Array:
    """Put elements back to the places from which `_gathered` takes them, with zeros around them."""
    pads = [(0, 0, 0), (0, 0, 0)]
    for start, end, length in zip(place, _ends(place, stride, x.shape[2:]), shape, strict=True):
        pads.append((start, length - end, stride - 1))
    return lax.pad(x, jnp.zeros((), x.dtype), pads)


def _ends(place: tuple[int, ...], stride: int, shape: tuple[int, ...]) -> list[int]:
    """Return the row and column behind the last element at a place of all windows."""
    pairs = zip(place, shape, strict=True)
    return [start + stride * (windows - 1) + 1 for start, windows in pairs]


max_pool_by_windows.defvjp(_pool_forward, _pool_backward)


def _pure(layer: Layer, weights: Tree, x: Array) -> Array:
    """Return the output of a layer without buffers and dropout."""
    match layer:
        case layers.Dense(bias=bias):
            product = x @ weights["weight"].T
            return product + weights["bias"] if bias else product
        case layers.Convolution(stride=stride, padding=padding):
            pads = [(padding, padding)] * 2
            return lax.conv_general_dilated(
                x,
                weights["weight"],
                (stride, stride),
                pads,
                dimension_numbers=("NCHW", "OIHW", "NCHW"),
            )
        case layers.Relu():
            return jax.nn.relu(x)
        case layers.MaxPool(kernel, stride, padding):
            pool = _max_pool if jax.default_backend() == "cpu" else max_pool_by_windows
            return pool(x, kernel, stride, padding)
        case layers.GlobalAveragePool():
            return x.mean((2, 3))
        case layers.Embedding():
            table: Array = weights["weight"]
            return table[x]
        case layers.RmsNorm():
            return _rms_norm(layer, weights, x)
        case layers.Attention():
            return _attention(layer, weights, x)
        case layers.SwiGlu():
            children = dict(layer.children)
            gate = _pure(children["gate"], weights["gate"], x)
            up = _pure(children["up"], weights["up"], x)
            return _pure(children["down"], weights["down"], jax.nn.silu(gate) * up)
    raise TypeError(f"no JAX function for {type(layer).__name__}")


def _rms_norm(layer: layers.RmsNorm, weights: Tree, x: Array) -> Array:
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + layer.epsilon)
    return (wide * scale * weights["weight"]).astype(x.dtype)


def _attention(layer: layers.Attention, weights: Tree, x: Array) -> Array:
    children = dict(layer.children)
    query = _heads(layer, _pure(children["query"], weights["query"], x))
    key = _heads(layer, _pure(children["key"], weights["key"], x))
    value = _heads(layer, _pure(children["value"], weights["value"], x))
    mixed = jax.nn.dot_product_attention(
        _rotate(query, layer.theta), _rotate(key, layer.theta), value, is_causal=True
    )
    return _pure(children["output"], weights["output"], mixed.reshape(x.shape))


def _heads(layer: layers.Attention, x: Array) -> Array:
    """Take (batch, position, heads * head feature) to (batch, position, head, head feature)."""
    return x.reshape(*x.shape[:2], -1, layer.head_features)


def _rotate(x: Array, theta: float) -> Array:
    """Rotate the features of (batch, position, head, head feature) by their positions.

    The angles are float32 in every precision.
    """
    position = jnp.arange(x.shape[1], dtype=jnp.float32)
    pair = jnp.arange(0, x.shape[3], 2, dtype=jnp.float32) / x.shape[3]
    angle = jnp.outer(position, theta**-pair)[:, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=3)
    rotated_first = first * jnp.cos(angle) - second * jnp.sin(angle)
    rotated_second = second * jnp.cos(angle) + first * jnp.sin(angle)
    return jnp.concatenate((rotated_first, rotated_second), axis=3).astype(x.dtype)
