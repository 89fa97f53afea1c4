"""The neutral vocabulary as pure functions of nested dictionaries, which hold the arrays under the parts of their names.

All arrays keep the canonical layouts: XLA chooses how it computes with them, and `leaves` need not
copy.
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
    """Return the layer's output and its buffers after this batch.

    `key` decides what dropout zeroes.
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
    """Return what the child makes of `x`, or `x` where there is no such child, and enter its buffers, if any, in `changed`."""
    child = dict(parent.children).get(name)
    if child is None:
        return x
    x, own = forward(child, weights.get(name, {}), buffers.get(name, {}), x, key)
    if own:
        changed[name] = own
    return x


def _batch_norm(
    layer: layers.BatchNorm, weights: Tree, buffers: Tree, x: Array
) -> tuple[Array, Tree]:
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    count = x.size // layer.features
    scale = weights["weight"] * lax.rsqrt(variance + layer.epsilon)
    output = (x - _per_channel(mean)) * _per_channel(scale) + _per_channel(weights["bias"])
    # the unbiased variance
    batch = {"running_mean": mean, "running_var": variance * (count / (count - 1))}
    changed = {
        name: (1 - layer.momentum) * buffers[name] + layer.momentum * value
        for name, value in batch.items()
    }
    return output, changed


def _per_channel(x: Array) -> Array:
    return x[:, None, None]


def _dropout(x: Array, rate: float, key: Array) -> Array:
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x))


def _max_pool(x: Array, kernel: int, stride: int, padding: int) -> Array:
    """(image, channel, row, column) -> the same with fewer rows and columns."""
    pads = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 1, kernel, kernel), (1, 1, stride, stride), pads
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool_by_windows(x: Array, kernel: int, stride: int, padding: int) -> Array:
    """`_max_pool`, whose gradient goes to the first largest element of each window too, but is not scattered there.

    Where a GPU must be deterministic, XLA scatters one element after the other: seconds for a batch
    of ResNet-50.
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
    """Add up, over the places in a window, the gradients of the windows whose first largest element is there."""
    x, pooled = kept
    rows, columns = x.shape[2:]
    pads = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    padded = jnp.pad(x, pads, constant_values=-jnp.inf)
    found = jnp.zeros(pooled.shape, bool)
    total = jnp.zeros_like(padded)
    for row, column in itertools.product(range(kernel), repeat=2):
        ends = [
            place + stride * (length - 1) + 1
            for place, length in zip((row, column), pooled.shape[2:], strict=True)
        ]
        here = lax.slice(padded, (0, 0, row, column), (*x.shape[:2], *ends), (1, 1, stride, stride))
        is_first = (here == pooled) & ~found
        found |= is_first
        behind = [length - end for length, end in zip(padded.shape[2:], ends, strict=True)]
        spread = [
            (0, 0, 0),
            (0, 0, 0),
            (row, behind[0], stride - 1),
            (column, behind[1], stride - 1),
        ]
        total += lax.pad(jnp.where(is_first, gradient, 0), jnp.zeros((), gradient.dtype), spread)
    return (total[:, :, padding : padding + rows, padding : padding + columns],)


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
            gate, up = (_pure(children[name], weights[name], x) for name in ("gate", "up"))
            return _pure(children["down"], weights["down"], jax.nn.silu(gate) * up)
    raise TypeError(f"no JAX function for {type(layer).__name__}")


def _rms_norm(layer: layers.RmsNorm, weights: Tree, x: Array) -> Array:
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + layer.epsilon)
    return (wide * scale * weights["weight"]).astype(x.dtype)


def _attention(layer: layers.Attention, weights: Tree, x: Array) -> Array:
    children = dict(layer.children)
    query, key, value = (
        _heads(layer, _pure(children[name], weights[name], x)) for name in ("query", "key", "value")
    )
    mixed = jax.nn.dot_product_attention(
        _rotate(query, layer.theta), _rotate(key, layer.theta), value, is_causal=True
    )
    return _pure(children["output"], weights["output"], mixed.reshape(x.shape))


def _heads(layer: layers.Attention, x: Array) -> Array:
    """(batch, position, heads * head feature) -> (batch, position, head, head feature)."""
    return x.reshape(*x.shape[:2], -1, layer.head_features)


def _rotate(x: Array, theta: float) -> Array:
    """Turn the head features of (batch, position, head, head feature) by their position; angles are float32."""
    position = jnp.arange(x.shape[1], dtype=jnp.float32)
    pair = jnp.arange(0, x.shape[3], 2, dtype=jnp.float32) / x.shape[3]
    angle = jnp.outer(position, theta**-pair)[:, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=3)
    turned = (
        first * jnp.cos(angle) - second * jnp.sin(angle),
        second * jnp.cos(angle) + first * jnp.sin(angle),
    )
    return jnp.concatenate(turned, axis=3).astype(x.dtype)
